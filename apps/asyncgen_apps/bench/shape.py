"""Define the sizes and the family of a checkpoint that is made on the spot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen_apps.bench.styles import LLAMA, Style

if TYPE_CHECKING:
    from collections.abc import Iterator


CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model, and its family.

    Attributes:
        hidden: Width E of the residual stream.
        layers: Number of decoder layers.
        heads: Query heads H.
        kv_heads: Key and value heads K.
        ffn: Width of the feed-forward layer, or of each expert.
        vocab: Vocabulary size V, at least 512.
        tied: True if the output head is the embedding table.
        context: Tokens of the longest text.
        experts: Experts of a layer; 0: there are none.
        chosen: Experts of a token.
        head: Width of a head; 0: the stream's, divided among the query heads.
        style: The family.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool = True
    context: int = CONTEXT
    experts: int = 0
    chosen: int = 0
    head: int = 0
    style: Style = LLAMA

    @property
    def head_dim(self) -> int:
        """Width D of a head."""
        return self.head or self.hidden // self.heads

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name every weight of the checkpoint with its shape."""
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            yield from self._attention(f"{prefix}.self_attn")
            yield from self._feed_forward(f"{prefix}.mlp")
            for norm in self.style.norms:
                yield f"{prefix}.{norm}.weight", (self.hidden,)
        yield "model.norm.weight", (self.hidden,)
        if not self.tied:
            yield "lm_head.weight", (self.vocab, self.hidden)

    def _attention(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name the weights of one attention."""
        style, keys = self.style, self.kv_heads * self.head_dim
        queries = self.heads * self.head_dim
        widths = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        if style.is_joined:
            widths = {"qkv_proj": queries + 2 * keys}
        for name, width in widths.items():
            yield f"{prefix}.{name}.weight", (width, self.hidden)
        yield f"{prefix}.o_proj.weight", (self.hidden, queries)
        if style.has_head_norms:
            for name in ("q_norm", "k_norm"):
                yield f"{prefix}.{name}.weight", (self.head_dim,)
        if style.has_biases:
            for name, width in {**widths, "o_proj": self.hidden}.items():
                yield f"{prefix}.{name}.bias", (width,)
            yield f"{prefix}.sinks", (self.heads,)

    def _feed_forward(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name the weights of one feed-forward, or of its experts."""
        style, count, hidden = self.style, self.experts, self.hidden
        if style.experts == "together":
            yield f"{prefix}.router.weight", (count, hidden)
            yield f"{prefix}.router.bias", (count,)
            for name, size in (
                ("gate_up_proj", (hidden, 2 * self.ffn)),
                ("down_proj", (self.ffn, hidden)),
            ):
                yield f"{prefix}.experts.{name}", (count, *size)
                yield f"{prefix}.experts.{name}_bias", (count, size[1])
            return
        feeds = [prefix]
        if count:
            yield f"{prefix}.gate.weight", (count, hidden)
            feeds = [f"{prefix}.experts.{number}" for number in range(count)]
        for feed in feeds:
            if style.is_joined:
                yield f"{feed}.gate_up_proj.weight", (2 * self.ffn, hidden)
            else:
                yield f"{feed}.gate_proj.weight", (self.ffn, hidden)
                yield f"{feed}.up_proj.weight", (self.ffn, hidden)
            yield f"{feed}.down_proj.weight", (hidden, self.ffn)

    @property
    def num_parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for _, shape in self.tensors())

    @property
    def num_active(self) -> int:
        """Number of weights that a token is computed with."""
        idle = max(self.experts - self.chosen, 0)
        return self.num_parameters - self.layers * idle * 3 * self.ffn * self.hidden

    def settings(self) -> dict[str, object]:
        """Return the entries of ``config.json`` for this family alone."""
        return {}
