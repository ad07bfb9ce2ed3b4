"""T5 and its later variants: an encoder, a decoder, and relative positions.

Raffel et al., "Exploring the Limits of Transfer Learning" (2020), section 2.1. The decoder is a
`DecoderLM` whose layers also attend to the encoder; the encoder runs once for a text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

import torch
from torch import Tensor, nn

from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.errors import InvalidRequestError
from asyncgen.models.activations import ACTIVATIONS
from asyncgen.models.attention.cross import (
    CrossAttentionContext,
    Encoded,
    EncoderAttention,
    EncoderDecoderAttention,
)
from asyncgen.models.attention.relative import RelativeBias
from asyncgen.models.decoder import DecoderLM
from asyncgen.models.kernels.linear import Embedding, Linear
from asyncgen.models.kernels.norm import Norm
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.weight_map import WeightRule, module_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.cache.caches import Cache
    from asyncgen.families.config import ModelConfig, T5Config
    from asyncgen.models.attention.dense import AttentionContext


class T5Layer(Prepared):
    """One layer of the encoder or decoder: attention, in the decoder cross-attention, feed-forward.

    Each part's input is normalised, and its output added to the stream.
    """

    def __init__(
        self, config: T5Config, index: int, *, is_decoder: bool, dtype: torch.dtype
    ) -> None:
        """Make the parameters.

        Args:
            config: The model's.
            index: Number of the layer in its stack.
            is_decoder: True if it attends to the encoder.
            dtype: Of the parameters.
        """
        super().__init__()
        hidden, width = config.hidden_size, config.intermediate_size
        inner, eps = config.num_attention_heads * config.head_dim, config.rms_norm_eps
        self.index = index
        self.head_dim = config.head_dim
        self.is_gated = config.is_gated_act
        self.input_norm = Norm(hidden, eps, dtype=dtype)
        self.qkv = Linear(hidden, 3 * inner, dtype=dtype)
        self.output = Linear(inner, hidden, dtype=dtype)
        self.cross_norm = Norm(hidden, eps, dtype=dtype) if is_decoder else None
        self.cross_q = Linear(hidden, inner, dtype=dtype) if is_decoder else None
        self.cross_kv = Linear(hidden, 2 * inner, dtype=dtype) if is_decoder else None
        self.cross_output = Linear(inner, hidden, dtype=dtype) if is_decoder else None
        self.post_norm = Norm(hidden, eps, dtype=dtype)
        self.up = Linear(hidden, (2 if self.is_gated else 1) * width, dtype=dtype)
        self.down = Linear(width, hidden, dtype=dtype)
        self.activate = ACTIVATIONS[config.hidden_act]

    def prepare(self) -> None:
        """Gather what `run` uses; call it again after weights were replaced or moved."""
        across = None
        if self.cross_norm is not None:
            assert self.cross_q is not None and self.cross_kv is not None
            assert self.cross_output is not None
            across = (
                self.cross_norm.scaler.into,
                self.cross_q.ready().product,
                self.cross_kv.ready().product,
                self.cross_output.ready().add_to,
            )
        self._plan = (
            self.input_norm.scaler.into,
            self.qkv.ready().product,
            self.output.ready().add_to,
            across,
            self.post_norm.scaler.into,
            self.up.ready().product,
            self.down.ready().add_to,
        )

    def run(self, x: Tensor, placed: object, attention: AttentionContext, space: Tensor) -> None:
        """Add this layer's output to the stream ``x`` ``[N, E]`` in place.

        Args:
            x: The residual stream.
            placed: Not used: positions are relative.
            attention: Does the attention.
            space: Memory ``[N, E]`` for normalised rows.
        """
        input_norm, qkv, add_output, across, post_norm, up, add_down = self._plan or self._ready()
        heads = qkv(input_norm(x, space)).view(x.shape[0], -1, self.head_dim)  # [N, 3H, D]
        add_output(x, attention.attend(self.index, heads))
        if across is not None:
            norm, queries, pair, add_across = across
            reaching = cast("CrossAttentionContext", attention)
            asked = queries(norm(x, space))
            add_across(x, reaching.cross_attend(self.index, asked, pair))
        inner = up(post_norm(x, space))
        if self.is_gated:
            gate, linear = inner.chunk(2, dim=-1)
            add_down(x, self.activate(gate.contiguous()).mul_(linear))
        else:
            add_down(x, self.activate(inner))


class T5(DecoderLM):
    """An encoder and a decoder that share one embedding table.

    As a `DecoderLM` it is its decoder: `decode`, `hidden` and `project` compute that, with the
    context that `attention` makes.
    """

    config: T5Config

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype | None = None) -> None:
        """Make the parameters, uninitialised, on the current default device.

        Args:
            config: Description of the network, a `T5Config`.
            dtype: Of the parameters; ``None``: torch's default.
        """
        super().__init__(config, dtype=dtype)
        dtype = dtype or torch.get_default_dtype()
        self.encoder_layers = nn.ModuleList(
            T5Layer(self.config, index, is_decoder=False, dtype=dtype)
            for index in range(self.config.num_encoder_layers)
        )
        self.encoder_norm = self._make_norm(dtype)
        self._biases: dict[bool, RelativeBias] = {}

    def prepare(self) -> None:
        """Lay out every weight for its kernel; idempotent, and again after a replacement."""
        self._biases.clear()
        super().prepare()
        for block in self.encoder_layers:
            cast("T5Layer", block).prepare()

    @torch.no_grad()
    def encode(
        self,
        embeddings: Tensor,
        mask: Tensor | None = None,
        *,
        collect: list[Tensor] | None = None,
        collect_attentions: list[Tensor] | None = None,
    ) -> Encoded:
        """Run the encoder.

        Args:
            embeddings: ``[B, T, E]``; not changed.
            mask: ``[B, T]``, zero or ``False`` at padding.
            collect: Gets the embeddings and each layer's output, ``[B, T, E]``, the last one
                normalised.
            collect_attentions: Gets the attention weights ``[B, H, T, T]`` of every layer.

        Returns:
            The output ``[B, T, E]`` and the mask.
        """
        self._ready()
        batch, length, width = embeddings.shape
        seen = None if mask is None or bool((mask != 0).all()) else mask != 0
        stream = embeddings.reshape(-1, width).clone()
        attention = EncoderAttention(self.config, self._bias(True), seen, collect_attentions)
        attention.begin(batch, length)
        space = torch.empty_like(stream)
        for block in self.encoder_layers:
            if collect is not None:
                collect.append(stream.view(batch, length, width).clone())
            cast("T5Layer", block).run(stream, (), attention, space)
        states = self.encoder_norm.scaler.into(stream, stream).view(batch, length, width)
        if collect is not None:
            collect.append(states)
        return Encoded(states, seen)

    def attention(
        self,
        cache: Cache,
        attention_mask: Tensor | None,
        encoded: Encoded,
        *,
        collect_attentions: list[Tensor] | None = None,
        collect_cross_attentions: list[Tensor] | None = None,
    ) -> EncoderDecoderAttention:
        """Make the context of the decoder.

        Args:
            cache: An `EncoderDecoderCache`.
            attention_mask: Of decoder positions, ``[B, T]``; ``None``: no padding.
            encoded: The encoder's output; without states if the cache holds them.
            collect_attentions: Gets the decoder's attention weights.
            collect_cross_attentions: Gets the weights to the encoder.

        Raises:
            InvalidRequestError: The cache is of another kind.
        """
        if not isinstance(cache, EncoderDecoderCache):
            raise InvalidRequestError(
                "past_key_values",
                type(cache).__name__,
                "this model needs an `EncoderDecoderCache(DynamicCache(), DynamicCache())`",
            )
        self._ready()
        return EncoderDecoderAttention(
            self.config,
            cache,
            attention_mask,
            bias=self._bias(False),
            encoded=encoded,
            collect_attentions=collect_attentions,
            collect_cross_attentions=collect_cross_attentions,
        )

    def project(self, hidden: Tensor) -> Tensor:
        """Compute logits ``[..., V]`` of normalised hidden states ``[..., E]``, in the model's
        dtype."""
        if self.config.scale_decoder_outputs:
            hidden = hidden * self.config.hidden_size**-0.5
        return super().project(hidden)

    def decode(self, input_ids: Tensor, positions: Tensor, attention: AttentionContext) -> Tensor:
        """Compute logits ``[B, V]`` after the last of decoder ids ``[B, S]``.

        Args:
            input_ids: ``[B, S]``, int64.
            positions: Not used: positions are relative.
            attention: Result of `attention`; its cache grows by S positions.
        """
        hidden = self.hidden(self.embed(input_ids), positions, attention)
        return self.project(hidden[:, -1])

    def weight_map(self) -> tuple[WeightRule, ...]:
        """List the sources of each parameter, in the order of computation."""
        config = self.config
        table = [config.vocab_size], config.hidden_size
        rules = module_rules("embed_tokens", [config.names["embed_tokens"]], *table)
        rules += self._stack_rules()
        if not config.tie_word_embeddings:
            rules += module_rules("lm_head", [config.names["lm_head"]], *table)
        return tuple(rules)

    def _stack_rules(self) -> list[WeightRule]:
        config = self.config
        rules: list[WeightRule] = []
        stacks = (
            ("encoder", "encoder_layers", "encoder_norm", config.num_encoder_layers),
            ("decoder", "layers", "norm", config.num_hidden_layers),
        )
        buckets, heads = [config.relative_attention_num_buckets], config.num_attention_heads
        for stack, layers, norm, depth in stacks:
            source = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
            rules += module_rules(f"{stack}_bias", [source], buckets, heads)
            for index in range(depth):
                rules += self._block_rules(f"{layers}.{index}.", f"{stack}.block.{index}.layer.")
            rules += module_rules(norm, [f"{stack}.final_layer_norm"], [config.hidden_size])
        return rules

    def _block_rules(self, ours: str, theirs: str) -> list[WeightRule]:
        config = self.config
        hidden, width = config.hidden_size, config.intermediate_size
        inner = config.num_attention_heads * config.head_dim
        last = 2 if theirs.startswith("decoder") else 1
        own, across, block = "0.SelfAttention", "1.EncDecAttention", f"{last}.DenseReluDense"
        layout = [
            ("input_norm", "0", "layer_norm", hidden, None),
            ("qkv", own, "q k v", inner, hidden),
            ("output", own, "o", hidden, inner),
            ("cross_norm", "1", "layer_norm", hidden, None),
            ("cross_q", across, "q", inner, hidden),
            ("cross_kv", across, "k v", inner, hidden),
            ("cross_output", across, "o", hidden, inner),
            ("post_norm", f"{last}", "layer_norm", hidden, None),
            ("up", block, "wi_0 wi_1" if config.is_gated_act else "wi", width, hidden),
            ("down", block, "wo", hidden, width),
        ]
        rules: list[WeightRule] = []
        for target, part, names, rows, columns in layout:
            if target.startswith("cross") and last == 1:  # the encoder has no such part
                continue
            sources = [f"{theirs}{part}.{name}" for name in names.split()]
            rules += module_rules(f"{ours}{target}", sources, [rows] * len(sources), columns)
        return rules

    def _bias(self, both_ways: bool) -> RelativeBias:
        """Return the position biases of the encoder (both ways) or the decoder."""
        if both_ways not in self._biases:
            module = self.encoder_bias if both_ways else self.decoder_bias
            table = module.weight.detach().to(self.dtype)
            distance = self.config.relative_attention_max_distance
            bias = RelativeBias(table, both_ways=both_ways, max_distance=distance)
            self._biases[both_ways] = bias
        return self._biases[both_ways]

    def _make_layer(self, index: int, dtype: torch.dtype) -> nn.Module:
        return T5Layer(self.config, index, is_decoder=True, dtype=dtype)

    def _make_positions(self, dtype: torch.dtype) -> None:
        shape = (self.config.relative_attention_num_buckets, self.config.num_attention_heads)
        self.encoder_bias = Embedding(*shape, dtype=dtype)
        self.decoder_bias = Embedding(*shape, dtype=dtype)

    def _make_space(self, tokens: int, like: Tensor) -> Tensor:
        return torch.empty_like(like)

    def _placing(self) -> Callable[[Tensor, Tensor], Sequence[tuple[Tensor, ...]]]:
        return lambda _, positions: ()

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        self._biases.clear()
        return super()._apply(fn, recurse)
