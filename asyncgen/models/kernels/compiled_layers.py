"""All blocks of a decoder in one call, where every part of them is a kernel of ours, and with them
its logits, where the last norm and the head are.

Between two operators of a small model Python takes longer than the operators. What is computed is
the same, to the last bit.
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
    """The parts of one block, as modules know them or compiled; see ``_kernels.pyi``.

    Attributes:
        input_norm: Before the attention, or ``None``.
        qkv: Product of queries, keys and values, or what makes them of latent rows; ``None``: the
            block does not attend.
        heads_norm: Of queries and keys together, or with ``keys_norm`` of all queries of a token;
            ``None``: none.
        keys_norm: Of all keys of a token, or ``None``.
        is_normed_turned: Whether heads are normalised after they were turned.
        rope: Which of the model's ropes turns the heads; -1: none.
        sinks: Of the query heads, ``[H]`` in float32, or ``None``.
        output: Product behind the attention, or ``None``.
        output_norm: Of what it gives, or ``None``.
        post_norm: Before the feed-forward, or ``None``.
        up: Its first product, with its activation; or experts; or ``None``.
        down: Its second; ``None`` behind experts.
        down_norm: Of what that gives, or ``None``.
        is_parallel: Whether both parts see the stream as it was before the block.
        output_scale: Factor on what the attention, and the mixer, add to the stream.
        down_scale: Factor on what the feed-forward adds to it.
        mixer: What goes on from a state, beside the attention or in its place; or ``None``.
        has_gates: Whether gates of what attention gives lie behind the heads.
        input_stay: What takes the stream's place once the first norm was made of it, or ``None``.
        post_stay: The same of the second norm.
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
    """What mixes tokens with a state.

    Attributes:
        compiled: The kernel, where all of it is ours.
    """

    @property
    def compiled(self) -> Any | None: ...
    def run(self, x: Tensor, layer: int, states: Any) -> Tensor:
        """What it adds to the stream, ``[N, E]``."""


def pass_gates(x: Tensor, gates: Tensor) -> Tensor:
    """Multiply rows by the sigmoid of gates, ``[N, F]`` both, in place; return them."""
    if native.kernels is None or not x.is_cpu or not native.supports(x.dtype):
        return x.mul_(gates.sigmoid())
    native.kernels.pass_gates(x, gates)
    return x


def compile_parts(block: LayerParts) -> LayerParts | None:
    """A block of compiled parts; ``None`` where a part, or an activation, is not ours."""
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
    """One call for all layers, if each has a `LayerParts`.

    Args:
        layers: Modules that know their `LayerParts`, or of another kind.
        width: Of the stream.
        dtype: Of the stream.
        ends: What `compiled_ends` gives: with these the call can make logits too.
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
    """The last norm and the head, compiled; ``None`` where one of them is not ours.

    Args:
        norm: What normalises.
        head: The kernel of the head.
    """
    is_ours = isinstance(head, NativeKernel | PackedLinearKernel)
    return (norm.compiled, head.compiled) if is_ours and isinstance(norm, NativeScaler) else None
