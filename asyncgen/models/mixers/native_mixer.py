"""Mixers by our own kernels: one call from the normalised stream to the mixer's result.

A call goes on from the states in their places and leaves the new ones there: nothing is copied
together, and prompts in chunks and single tokens are one step. See ``asyncgen/native/src/scans.h``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen import native
from asyncgen.models.kernels.native_linear import NativeKernel
from asyncgen.models.kernels.norm import NativeScaler

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor


def compile_mixer(kind: str, *parts: Any, **options: Any) -> Any | None:
    """Join the parts of a mixer in one call, if every part is a kernel of ours.

    Args:
        kind: The kernel's name in ``_kernels.pyi``.
        parts: Kernels of products, norms, tensors in float32; ``None`` for missing parts.
        options: Those of the kernel; norms among them.
    """
    if native.kernels is None:
        return None
    taken = [_compiled(part) for part in parts]
    named = {name: _compiled(option) for name, option in options.items()}
    if _missing in taken or _missing in named.values():
        return None
    return getattr(native.kernels, kind)(*taken, **named)


def native_states(
    layers: Sequence[tuple[Tensor, Tensor] | None], dtype: torch.dtype, device: torch.device
) -> Any | None:
    """Wrap the states of all layers for our kernels, if they compute on this device.

    Args:
        layers: Windows ``[places, W, C]`` and states ``[places, H, P, N]`` of each layer, which
            stay in place; ``None`` for a layer without.
        dtype: Of the windows.
        device: Device of all of it.
    """
    if native.kernels is None or device.type != "cpu" or not native.supports(dtype):
        return None
    return native.kernels.States(layers, dtype=dtype)


def add_mixed(compiled: Any, stream: Tensor, x: Tensor, states: Any, layer: int) -> None:
    """Add a compiled mixer's result for some rows to the stream ``[N, E]`` in place.

    Args:
        compiled: See `compile_mixer`.
        stream: The residual stream.
        x: Normalised rows of it, ``[N, E]``.
        states: See `StateContext`; it has `native`.
        layer: Number of the layer.
    """
    order = states.order
    if order is None:
        compiled.add_to(stream, x, states.native, layer)
    else:
        some = stream.index_select(0, order)
        compiled.add_to(some, x.index_select(0, order), states.native, layer)
        stream.index_copy_(0, order, some)
    states.keep(layer)


_missing = object()


def _compiled(part: Any) -> Any:
    """Return the argument that a kernel takes for a part; `_missing` if the part is not ours."""
    if isinstance(part, NativeKernel | NativeScaler):
        return part.compiled
    is_foreign = hasattr(part, "product") or hasattr(part, "into")
    return _missing if is_foreign else part
