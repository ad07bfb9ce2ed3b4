"""All blocks of a decoder in one call, where every part of them is a kernel of ours.

Between two operators of a small model Python takes longer than the operators. What is computed is
the same, to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from asyncgen import native
from asyncgen.models.kernels.experts import Experts
from asyncgen.models.kernels.native_linear import NativeKernel
from asyncgen.models.kernels.norm import NativeScaler

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

Block: TypeAlias = tuple[Any, ...]
"""The compiled parts of one block, in the order of computation; see ``_kernels.pyi``."""


def compiled_block(*parts: object) -> Block | None:
    """The compiled parts of a block.

    Args:
        *parts: Norm, product of queries, keys and values, norm of heads or ``None``, output
            product, norm, gated product, product down; or experts and ``None`` in the place of the
            last two.

    Returns:
        ``None`` where one is not ours, or the feed-forward is not gated by it.
    """
    gate_up = parts[5]
    if isinstance(gate_up, Experts):
        if gate_up.compiled is None:
            return None
    elif not (isinstance(gate_up, NativeKernel) and gate_up.is_gated):
        return None
    ours = NativeKernel | NativeScaler | Experts
    if not all(part is None or isinstance(part, ours) for part in parts):
        return None
    return tuple(part.compiled if isinstance(part, ours) else None for part in parts)


def compile_layers(layers: Sequence[Any], dtype: torch.dtype) -> Any | None:
    """One call for all layers, if each has a `Block`.

    Args:
        layers: Modules that know their `Block`, or of another kind.
        dtype: Of the stream.
    """
    if native.kernels is None or not all(hasattr(layer, "compiled") for layer in layers):
        return None
    blocks = [layer.compiled() for layer in layers]
    if not blocks or any(block is None for block in blocks):
        return None
    return native.kernels.Layers(blocks, rotary=native.kernels.Rotary(dtype))
