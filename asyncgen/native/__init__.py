"""Our own kernels for the CPU, in C++: optional, and faster where they run.

They are compiled when the package is installed (``hatch_build.py``), for Linux on x86-64 with a
C++ compiler at hand, and chosen when a model is loaded, where the processor has AVX-512. Everywhere
else torch's kernels compute the same. ``ASYNCGEN_KERNELS=torch`` in the environment chooses those,
too.

What sets them apart, besides speed: the result of a row is one sum in one order, whatever the other
rows of a step are. So a text does not depend on its company in a batch, to the last bit.

The functions take pointers and sizes and check nothing: only this package calls them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import torch  # first: its OpenMP threads are then ours as well

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = [
    "MOST_HEAD_DIM",
    "PANEL",
    "TILE_INPUTS",
    "Use",
    "attention",
    "cpu_kernels",
    "kernels",
    "linear",
    "rms_norm",
    "rotate",
    "supports",
]

PANEL: Final = 32
"""Outputs that lie together in a weight."""

TILE_INPUTS: Final = 32
"""Inputs of a weight in bfloat16 come in so many."""

MOST_HEAD_DIM: Final = 256
"""The largest heads that attention is computed for."""


class Use:
    """What becomes of a product; numbers as in ``src/kernels.h``."""

    STORE: Final = 0
    ADD: Final = 1
    GATE_SILU: Final = 2


def _find() -> ModuleType | None:
    chosen = os.environ.get("ASYNCGEN_KERNELS", "")
    if chosen not in ("", "torch"):
        raise ValueError(f"ASYNCGEN_KERNELS is {chosen!r} and must be unset or 'torch'")
    if chosen == "torch":
        return None
    try:
        from asyncgen.native import _kernels
    except ImportError:  # not compiled
        return None
    return _kernels if _kernels.features()["avx512"] else None


kernels = _find()
"""The compiled module, or ``None`` where it is missing or the processor is not made for it."""


def cpu_kernels() -> str:
    """Say whose kernels models compute with on this CPU, for people: in which instructions.

    Returns:
        ``"asyncgen (…)"``, or ``"torch"`` where our own are not compiled, not made for the
        processor, or turned off by ``ASYNCGEN_KERNELS=torch``.
    """
    if kernels is None:
        return "torch"
    found = kernels.features()
    tiles = "AMX" if found["amx_bf16"] else "AVX-512"
    return f"asyncgen (float32: AVX-512, bfloat16: {tiles if found['avx512_bf16'] else 'torch'})"


def supports(dtype: torch.dtype) -> bool:
    """Whether there are kernels for a dtype here."""
    if kernels is None:
        return False
    if dtype == torch.bfloat16:
        return bool(kernels.features()["avx512_bf16"])
    return dtype == torch.float32


def rms_norm(dtype: torch.dtype) -> Callable[..., None]:
    """The root-mean-square norm for a dtype that is supported."""
    assert kernels is not None
    return kernels.rms_norm_f32 if dtype == torch.float32 else kernels.rms_norm_bf16


def rotate(dtype: torch.dtype) -> Callable[..., None]:
    """Rotary positions for a dtype that is supported."""
    assert kernels is not None
    return kernels.rotate_f32 if dtype == torch.float32 else kernels.rotate_bf16


def linear(dtype: torch.dtype) -> Callable[..., None]:
    """The product for a dtype that is supported."""
    assert kernels is not None
    if dtype == torch.float32:
        return kernels.linear_f32
    return kernels.linear_bf16_amx if kernels.features()["amx_bf16"] else kernels.linear_bf16


def attention(dtype: torch.dtype) -> Callable[..., None]:
    """The attention over pages for a dtype that is supported."""
    assert kernels is not None
    if dtype == torch.float32:
        return kernels.attend_f32
    return kernels.attend_bf16_amx if kernels.features()["amx_bf16"] else kernels.attend_bf16
