"""Describe how the matrices of a checkpoint are stored, as its settings say it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.packed import part_shapes, schemes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.checkpoints.checkpoint import StoredTensor
    from asyncgen.checkpoints.packed.part_shapes import PartShapes

    Parts = Mapping[str, StoredTensor]

WORDS: Final = ("I32",)
BYTES: Final = ("U8", "I8", "F16", "BF16", "F32", "F64")
"""Dtypes of stored bytes (``bnb_4bit_quant_storage``)."""
FLOATS: Final = ("F16", "BF16", "F32", "F64")
SCALES: Final = (*FLOATS, "F8_E8M0")
FLOAT8: Final = ("F8_E4M3", "F8_E5M2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The way in which a matrix is stored.

    Attributes:
        read: Makes the packed weight, or floats, of the raw parts.
        shapes: Finds the shapes of a matrix and of its parts, from their headers.
        needed: Dtypes of the parts that must be there, by their names; the first holds the numbers.
        others: Dtypes of the parts that may be there.
        is_float: The numbers are floats: no layout of packed weights is exact.
        bits: Bits of a number that stays packed.
        size: Inputs of a scale; ``None``: all of the row.
        scales: Name of the scales.
        zeros: Name of the zero points.
    """

    read: Callable[[Mapping[str, Any]], Any]
    shapes: Callable[[Parts], PartShapes]
    needed: Mapping[str, tuple[str, ...]]
    others: Mapping[str, tuple[str, ...]]
    is_float: bool = False
    bits: int = 8
    size: int | None = None
    scales: str = "scales"
    zeros: str = "qzeros"


@dataclass(frozen=True, slots=True)
class Layout:
    """The way in which the matrices of a checkpoint are stored.

    Attributes:
        marker: Last part of the name of a tensor that each matrix has.
        of: Returns the scheme of a matrix by the name of its module, and the parts that it has.
    """

    marker: str
    of: Callable[[str, Parts], Scheme]


def float8_scheme(scale: str, blocks: Sequence[tuple[int, int] | None]) -> Scheme:
    """Give the scheme of float8.

    Args:
        scale: Name of the scales.
        blocks: See `schemes.float8`.
    """
    return Scheme(
        read=partial(schemes.float8, scale=scale, blocks=blocks),
        shapes=partial(part_shapes.float8, scale=scale, blocks=blocks),
        needed={"weight": FLOAT8, scale: SCALES},
        others={},
        is_float=True,
    )
