"""Define shapes whose layers keep states: Mamba 2, and Qwen 3.5 with attention in every fourth.

See :mod:`asyncgen_apps.bench.shape`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen_apps.bench.shape import ModelShape
from asyncgen_apps.bench.styles import MAMBA2, QWEN3_5

if TYPE_CHECKING:
    from collections.abc import Iterator


NUMBERS = 128
"""Size of a state for each channel, and of a key."""

TAPS = 4
"""Inputs of a convolution."""


class Mamba2Shape(ModelShape):
    """Shape of Mamba 2: one state a head, one group; ``ffn`` is the width of all heads."""

    __slots__ = ()

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name every weight of the checkpoint with its shape."""
        width = self._expand * self.hidden
        convolved = width + 2 * NUMBERS
        yield "backbone.embeddings.weight", (self.vocab, self.hidden)
        for layer in range(self.layers):
            prefix = f"backbone.layers.{layer}"
            yield f"{prefix}.norm.weight", (self.hidden,)
            mixer = f"{prefix}.mixer"
            yield f"{mixer}.in_proj.weight", (width + convolved + self.heads, self.hidden)
            yield f"{mixer}.conv1d.weight", (convolved, 1, TAPS)
            yield f"{mixer}.conv1d.bias", (convolved,)
            for name in ("A_log", "D", "dt_bias"):
                yield f"{mixer}.{name}", (self.heads,)
            yield f"{mixer}.norm.weight", (width,)
            yield f"{mixer}.out_proj.weight", (self.hidden, width)
        yield "backbone.norm_f.weight", (self.hidden,)

    @property
    def _expand(self) -> int:
        return self.ffn // self.hidden

    def settings(self) -> dict[str, object]:
        """Return the entries of ``config.json`` for this family alone."""
        return {
            "num_heads": self.heads,
            "head_dim": self._expand * self.hidden // self.heads,
            "expand": self._expand,
            "state_size": NUMBERS,
            "conv_kernel": TAPS,
            "n_groups": 1,
            # Transformers fills prompts up to so many tokens, and with the 256 of published models
            # a padded batch of 32 takes tens of gigabytes.
            "chunk_size": 32,
        }


class Qwen35Shape(ModelShape):
    """Shape of Qwen 3.5: three of four layers apply the gated delta rule, with twice the heads."""

    __slots__ = ()

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name every weight of the checkpoint with its shape."""
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            if layer % 4 == 3:
                yield from self._gated_attention(f"{prefix}.self_attn")
            else:
                yield from self._delta(f"{prefix}.linear_attn")
            yield from self._feed_forward(f"{prefix}.mlp")
            for norm in self.style.norms:
                yield f"{prefix}.{norm}.weight", (self.hidden,)
        yield "model.norm.weight", (self.hidden,)

    def _gated_attention(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        for name, size in self._attention(prefix):
            yield name, (2 * size[0], size[1]) if name.endswith("q_proj.weight") else size

    def _delta(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        heads, keys = 2 * self.heads, self.heads * NUMBERS
        values = heads * NUMBERS
        yield f"{prefix}.in_proj_qkv.weight", (2 * keys + values, self.hidden)
        yield f"{prefix}.in_proj_z.weight", (values, self.hidden)
        for name in ("in_proj_a", "in_proj_b"):
            yield f"{prefix}.{name}.weight", (heads, self.hidden)
        yield f"{prefix}.conv1d.weight", (2 * keys + values, 1, TAPS)
        for name in ("A_log", "dt_bias"):
            yield f"{prefix}.{name}", (heads,)
        yield f"{prefix}.norm.weight", (NUMBERS,)
        yield f"{prefix}.out_proj.weight", (self.hidden, values)

    def settings(self) -> dict[str, object]:
        """Return the entries of ``config.json`` for this family alone."""
        return {
            "linear_num_key_heads": self.heads,
            "linear_num_value_heads": 2 * self.heads,
            "linear_key_head_dim": NUMBERS,
            "linear_value_head_dim": NUMBERS,
            "linear_conv_kernel_dim": TAPS,
        }


STATE_SHAPES = {  # hidden, layers, heads, kv_heads, ffn, vocab
    "mamba2": Mamba2Shape(768, 24, 24, 24, 1536, 50288, style=MAMBA2),
    "qwen3_5": Qwen35Shape(640, 16, 5, 1, 1792, 49152, head=128, style=QWEN3_5),
}
