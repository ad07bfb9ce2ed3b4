"""Say from headers alone which shapes the parts of a packed matrix have.

A file may come from anybody: no part is read whole, and nothing is made, before the shapes of all
of them agree. What is read here is small and checked first: the shape of compressed-tensors (two
numbers), and the state of bitsandbytes (a short text).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen.checkpoints.packed.quant_state import LONGEST_STATE, parse_state
from asyncgen.checkpoints.packed.raw_tensors import read_raw
from asyncgen.checkpoints.packed.schemes import block_of_scales
from asyncgen.errors import shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from asyncgen.checkpoints.checkpoint import StoredTensor

    Parts = Mapping[str, StoredTensor]
    Shape = tuple[int, ...]

_CODES = 16
"""Numbers of a table of 4 bits."""
_LEVELS = 256
"""Numbers of a table of scales of 8 bits."""


@dataclass(frozen=True, slots=True)
class PartShapes:
    """Shapes of a matrix and of its parts.

    Attributes:
        matrix: Shape ``[out, in]`` of the matrix, or that of a stack of them.
        parts: Allowed shapes of each part that was not checked otherwise.
    """

    matrix: Shape
    parts: Mapping[str, Sequence[Shape]]

    def check(self, parts: Parts) -> None:
        """Compare the parts with their shapes.

        Raises:
            ValueError: One has another shape; names it.
        """
        for name, part in parts.items():
            allowed = self.parts.get(name)
            if allowed is not None and part.shape not in allowed:
                listed = " or ".join(str(list(shape)) for shape in allowed)
                raise ValueError(f"`{name}` is {shorten(list(part.shape))} and must be {listed}")


def gptq(parts: Parts, *, bits: int, size: int | None) -> PartShapes:
    """GPTQ: words run down the inputs, those of zero points along the outputs.

    Args:
        parts: The parts.
        bits: Bits of a number.
        size: Inputs of a group; ``None``: the whole row.

    Raises:
        ValueError: As all functions here: a part has no shape that a matrix could have.
    """
    rows, outputs = _sides(parts, "qweight")
    each = 32 // bits
    inputs = rows * each
    groups = _count(inputs, size)
    shapes: dict[str, list[Shape]] = {
        "qzeros": [(groups, _count(outputs, each))],
        "scales": [(groups, outputs)],
        "g_idx": [(inputs,)],
    }
    return PartShapes((outputs, inputs), shapes)


def awq(parts: Parts, *, size: int | None) -> PartShapes:
    """AWQ: all words run along the outputs; arguments and errors as of `gptq`."""
    inputs, words = _sides(parts, "qweight")
    groups, outputs = _count(inputs, size), 8 * words
    return PartShapes(
        (outputs, inputs), {"qzeros": [(groups, words)], "scales": [(groups, outputs)]}
    )


def compressed_integers(parts: Parts, *, bits: int, size: int | None) -> PartShapes:
    """compressed-tensors: scales of groups, of rows or of the tensor, and zero points as many.

    Zero points of packed numbers are packed as well, down the outputs; or int8.
    """
    is_packed = "weight_packed" in parts
    each = 32 // bits
    if is_packed:
        outputs, inputs = _stated_shape(parts["weight_shape"])
        if parts["weight_packed"].shape != (outputs, _count(inputs, each)):
            shown = shorten(list(parts["weight_packed"].shape))
            raise ValueError(f"`weight_packed` is {shown}, `weight_shape` {[outputs, inputs]}")
    else:
        outputs, inputs = _sides(parts, "weight")
    groups = _count(inputs, size)
    scales: list[Shape] = [(outputs, groups)]
    if size is None:
        scales += [(outputs,), (), (1,), (1, 1)]
    zeros = scales
    if is_packed and "weight_zero_point" in parts and parts["weight_zero_point"].kind == "I32":
        zeros = [(_count(outputs, each), groups)]
    order: list[Shape] = [(inputs,)]
    shapes = {"weight_scale": scales, "weight_zero_point": zeros, "weight_g_idx": order}
    return PartShapes((outputs, inputs), shapes)


def bitsandbytes_eight(parts: Parts) -> PartShapes:
    """bitsandbytes in 8 bits: a scale for each row."""
    outputs, inputs = _sides(parts, "weight")
    shapes: dict[str, list[Shape]] = {
        "SCB": [(outputs,), (outputs, 1)],
        "weight_format": [(), (1,)],
    }
    return PartShapes((outputs, inputs), shapes)


def bitsandbytes_four(parts: Parts) -> PartShapes:
    """bitsandbytes in 4 bits: the state has the shape; scales may be packed themselves."""
    length = parts["quant_state"].num_bytes
    if length > LONGEST_STATE:
        raise ValueError(f"`quant_state` has {length} bytes, {LONGEST_STATE} are allowed")
    state = parse_state(bytes(read_raw(parts["quant_state"]).flatten().tolist()))
    numbers, stored = math.prod(state.shape), parts["weight"].num_bytes
    if 2 * stored != numbers:
        raise ValueError(
            f"`weight` has {stored} bytes, and 4 bits for each of {shorten(list(state.shape))} are "
            f"{numbers // 2}"
        )
    nested = ("nested_absmax", "nested_quant_map")
    missing = [name for name in nested if name not in parts]
    is_nested = state.nested is not None
    is_byte = parts["absmax"].kind == "U8"
    if is_byte != is_nested or len(missing) != (0 if is_nested else 2):
        raise ValueError(
            f"`absmax` is {parts['absmax'].kind}, the state has "
            f"{'a' if is_nested else 'no'} `nested_blocksize`, and the parts "
            f"{len(nested) - len(missing)} of {list(nested)}: scales are U8 with all of these, or "
            "floats with none"
        )
    blocks = numbers // state.block
    shapes: dict[str, list[Shape]] = {"absmax": [(blocks,)], "quant_map": [(_CODES,)]}
    if state.nested is not None:
        shapes |= {
            "nested_absmax": [(_count(blocks, state.nested.block),)],
            "nested_quant_map": [(_LEVELS,)],
        }
    return PartShapes(state.shape, shapes)


def float8(parts: Parts, *, scale: str, blocks: Sequence[tuple[int, int] | None]) -> PartShapes:
    """float8: scales as one of the blocks says; see `schemes.float8`."""
    shape = parts["weight"].shape
    block_of_scales(parts[scale].shape, shape, blocks)
    return PartShapes(shape, {})


def three_values(parts: Parts) -> PartShapes:
    """BitNet: four rows a byte, and one scale."""
    rows, columns = _sides(parts, "weight")
    return PartShapes((4 * rows, columns), {"weight_scale": [(), (1,), (1, 1)]})


def _sides(parts: Parts, name: str) -> tuple[int, int]:
    """Return the sides of a matrix."""
    shape = parts[name].shape
    if len(shape) != 2 or min(shape) < 1:
        raise ValueError(f"`{name}` is {shorten(list(shape))} and must have two sides")
    return shape[0], shape[1]


def _stated_shape(part: StoredTensor) -> tuple[int, int]:
    """Read ``weight_shape``."""
    if part.shape != (2,):
        raise ValueError(f"`weight_shape` is {shorten(list(part.shape))} and must be [2]")
    outputs, inputs = (int(one) for one in read_raw(part))
    if outputs < 1 or inputs < 1:
        raise ValueError(f"`weight_shape` holds {[outputs, inputs]}, which must be at least 1")
    return outputs, inputs


def _count(total: int, size: int | None) -> int:
    """Return the number of groups of a size; ``None``: one."""
    return 1 if size is None else -(-total // size)
