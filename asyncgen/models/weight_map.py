"""Rules that make parameters of the tensors that a checkpoint stores.

A table of rules is all that a loader needs; it knows no architecture, and this module knows no file
format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class WeightRule:
    """One parameter: its sources, joined along the first axis in the order given.

    Attributes:
        target: Dotted name of the parameter in our model.
        sources: Names in the checkpoint.
        shapes: Shape of each source as it is stored.
        transposed: True if the sources are stored as ``[in, out]`` and joined as ``[out, in]``.
        order: Row of the joined sources that becomes each row of the parameter; ``None``: the same.
            If there are as many as elements, elements are meant.
        matrices: Number of matrices that lie one below the other in each source; those are
            transposed.
        is_cut_anyhow: True if files may have cut the whole into these sources at other rows.
    """

    target: str
    sources: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    transposed: bool = False
    order: tuple[int, ...] | None = None
    matrices: int = 1
    is_cut_anyhow: bool = False


def tensor_rule(target: str, source: str, *shape: int) -> WeightRule:
    """Give the rule of a module whose weight is one stored tensor as it is."""
    return WeightRule(f"{target}.weight", (source,), (shape,))


def module_rules(
    target: str,
    sources: Sequence[str],
    rows: Sequence[int],
    columns: int | None = None,
    *,
    bias: bool = False,
    transposed: bool = False,
    order: tuple[int, ...] | None = None,
) -> list[WeightRule]:
    """Give the rules of a module: its weight, and its bias if it has one.

    Args:
        target: The module in our model.
        sources: The modules of the checkpoint that are joined in it.
        rows: Outputs of each of them.
        columns: Their inputs; ``None``: the weight is a vector, as that of a norm.
        bias: True if they have biases.
        transposed: True if their matrices are stored as ``[in, out]``.
        order: See `WeightRule`.
    """
    vectors = tuple((count,) for count in rows)
    shapes: tuple[tuple[int, ...], ...] = vectors
    if columns is not None:
        shapes = tuple((columns, count) if transposed else (count, columns) for count in rows)
    weights = tuple(f"{source}.weight" for source in sources)
    rules = [WeightRule(f"{target}.weight", weights, shapes, transposed, order)]
    if bias:
        biases = tuple(f"{source}.bias" for source in sources)
        rules.append(WeightRule(f"{target}.bias", biases, vectors, order=order))
    return rules
