"""Compute all layers of a decoder in one call, if every part of them is a kernel of ours.

The call includes the logits if the last norm and the head are ours. Between two operators of a
small model Python takes longer than the operators. The results are the same, to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from asyncgen import native
from asyncgen.models.kernels.experts import Experts
from asyncgen.models.kernels.native_latent import NativeLatentHeads
from asyncgen.models.kernels.native_linear import NativeKernel
from asyncgen.models.kernels.native_packed import PackedLinearKernel
from asyncgen.models.kernels.norm import NativeScaler

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class LayerParts(NamedTuple):
    """Parts of one layer, as modules know them or compiled; see ``_kernels.pyi``.

    Attributes:
        input_norm: Before the attention, or ``None``.
        qkv: Product of queries, keys and values, or the maker of latent heads; ``None``: the layer
            does not attend.
        heads_norm: Of queries and keys together, or with ``keys_norm`` of all queries of a token;
            ``None``: none.
        keys_norm: Of all keys of a token, or ``None``.
        is_normed_turned: True if heads are normalised after they were rotated.
        rope: Number of the model's rope for the heads; -1: none.
        sinks: Of the query heads, ``[H]`` in float32, or ``None``.
        output: Product behind the attention, or ``None``.
        output_norm: Of its result, or ``None``.
        post_norm: Before the feed-forward, or ``None``.
        up: Its first product, with its activation; or experts; or ``None``.
        down: Its second; ``None`` behind experts.
        down_norm: Of its result, or ``None``.
        is_parallel: True if both parts read the stream as it was before the layer.
        output_scale: Factor on the output of attention and mixer.
        down_scale: Factor on the output of the feed-forward.
        mixer: Mixer with a state, beside the attention or in its place; or ``None``.
        has_gates: True if gates of the attention's result lie behind the heads.
        input_stay: Norm whose result replaces the stream after the first norm, or ``None``.
        post_stay: The same for the second norm.
    """

    input_norm: Any
    qkv: Any
    heads_norm: Any
    keys_norm: Any
    is_normed_turned: bool
    rope: int
    sinks: Tensor | None
    output: Any
    output_norm: Any
    post_norm: Any
    up: Any
    down: Any
    down_norm: Any
    is_parallel: bool
    output_scale: float
    down_scale: float
    mixer: Any
    has_gates: bool
    input_stay: Any = None
    post_stay: Any = None


_OURS = NativeKernel | PackedLinearKernel | NativeScaler | NativeLatentHeads | Experts


@runtime_checkable
class Mixer(Protocol):
    """Mixer of tokens with a state.

    Attributes:
        compiled: The kernel, if all of it is ours.
    """

    @property
    def compiled(self) -> Any | None: ...
    def run(self, x: Tensor, layer: int, states: Any) -> Tensor:
        """Compute what it adds to the stream, ``[N, E]``."""


def pass_gates(x: Tensor, gates: Tensor) -> Tensor:
    """Multiply rows by the sigmoid of gates, ``[N, F]`` both, in place; return them."""
    if native.kernels is None or not x.is_cpu or not native.supports(x.dtype):
        return x.mul_(gates.sigmoid())
    native.kernels.pass_gates(x, gates)
    return x


def compile_parts(block: LayerParts) -> LayerParts | None:
    """Replace the parts of a layer by compiled ones; ``None`` if a part, or an activation, is
    not ours."""
    if isinstance(block.up, NativeKernel | PackedLinearKernel) and block.up.activation is None:
        return None
    parts: list[Any] = []
    for part in block:
        if part is None or isinstance(part, bool | int | float | Tensor):
            parts.append(part)
        elif isinstance(part, _OURS | Mixer) and part.compiled is not None:
            parts.append(part.compiled)
        else:
            return None
    return LayerParts(*parts)


def compile_layers(
    layers: Sequence[Any], width: int, dtype: torch.dtype, ends: tuple[Any, Any] | None
) -> Any | None:
    """Make one call for all layers, if each has `LayerParts`.

    Args:
        layers: Modules with `LayerParts`, or of another kind.
        width: Width of the stream.
        dtype: Dtype of the stream.
        ends: Result of `compiled_ends`: with these the call can make logits too.
    """
    if native.kernels is None or not all(hasattr(layer, "compiled") for layer in layers):
        return None
    blocks = [layer.compiled() for layer in layers]
    if not blocks or any(block is None for block in blocks):
        return None
    norm, head = ends or (None, None)
    rotary = native.kernels.Rotary(dtype)
    return native.kernels.Layers(blocks, rotary=rotary, width=width, norm=norm, head=head)


def compiled_ends(norm: Any, head: Any) -> tuple[Any, Any] | None:
    """Give the last norm and the head, compiled; ``None`` if one of them is not ours.

    Args:
        norm: The norm.
        head: Kernel of the head.
    """
    is_ours = isinstance(head, NativeKernel | PackedLinearKernel)
    return (norm.compiled, head.compiled) if is_ours and isinstance(norm, NativeScaler) else None
