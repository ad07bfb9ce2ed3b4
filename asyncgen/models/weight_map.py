"""How parameters are made of the tensors that a checkpoint stores.

A table of rules is all that a loader needs; it knows no architecture, and this module knows no
file format.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightRule:
    """One parameter: its sources, joined along the first axis in the order given.

    Attributes:
        target: Dotted name of the parameter in our model.
        sources: Names in the checkpoint.
        shapes: Shape of each source as it is stored.
        transposed: Whether the sources are stored as ``[in, out]`` and joined as ``[out, in]``.
    """

    target: str
    sources: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    transposed: bool = False
