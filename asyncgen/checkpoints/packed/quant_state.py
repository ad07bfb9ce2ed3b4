"""Read the state that bitsandbytes stores beside each matrix of 4 bits: a short text in JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import torch

from asyncgen.checkpoints.packed.quantise import NF4_GROUP
from asyncgen.checkpoints.packed.stated_settings import Settings

LONGEST_STATE: Final = 4096
"""Most bytes of a state; those of bitsandbytes have 200."""

_FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
_LARGEST: Final = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class NestedScales:
    """How scales are packed themselves.

    Attributes:
        block: Scales that share a factor.
        offset: Added to each scale.
    """

    block: int
    offset: float


@dataclass(frozen=True, slots=True)
class QuantState:
    """A state.

    Attributes:
        quant_type: ``"fp4"`` or ``"nf4"``.
        shape: ``(out, in)`` of the matrix.
        block: Numbers that share a scale.
        nested: See `NestedScales`; ``None``: scales are floats.
    """

    quant_type: str
    shape: tuple[int, int]
    block: int
    nested: NestedScales | None


def parse_state(text: bytes) -> QuantState:
    """Read a state.

    Args:
        text: JSON.

    Raises:
        ValueError: It is no JSON.
        UnknownSettingError: A key is missing, not known or not supported; names it.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"`quant_state` is no JSON: {error}") from error
    state = Settings(values, "quant_state")
    for key in ("quant_type", "shape", "blocksize"):
        if state.get(key) is None:
            state.refuse(key, "it must be there")
    kind = state.choice("quant_type", ("fp4", "nf4"))
    shape, block = state.block("shape"), state.size("blocksize")
    assert shape is not None
    if block is None or block % NF4_GROUP:
        state.refuse("blocksize", f"it must be a multiple of {NF4_GROUP}")
    if shape[1] % block:
        reason = f"a row of {shape[1]} numbers, as `quant_state.shape` says, is no multiple of it"
        state.refuse("blocksize", reason)
    for key in ("dtype", "nested_dtype"):  # of the numbers when they are unpacked
        state.choice(key, _FLOATS)
    nested = None
    if state.get("nested_blocksize") is not None:
        size, offset = state.size("nested_blocksize"), state.get("nested_offset")
        if size is None:
            state.refuse("nested_blocksize", "it must be a positive integer")
        if type(offset) not in (int, float) or not -_LARGEST <= offset <= _LARGEST:
            state.refuse("nested_offset", "it must be a number of float32")
        nested = NestedScales(size, float(offset))
    state.finish()
    return QuantState(kind, shape, block, nested)
