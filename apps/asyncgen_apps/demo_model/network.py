"""A small trainable Llama whose parameter names follow the Hugging Face layout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class NetworkConfig:
    """The shape of the network.

    Attributes:
        vocab_size: Number of token ids.
        hidden_size: Width of the residual stream.
        intermediate_size: Width inside the gated feed-forward layers.
        layers: Number of transformer blocks.
        heads: Number of query heads.
        kv_heads: Number of key and value heads.
        context: Largest number of positions.
        rope_theta: Base of the rotary position angles.
        norm_eps: Epsilon of the RMS norms.
    """

    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 512
    layers: int = 6
    heads: int = 6
    kv_heads: int = 3
    context: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        """Return the width of one attention head.

        Returns:
            The hidden size divided by the number of query heads.
        """
        return self.hidden_size // self.heads


def rope_tables(config: NetworkConfig) -> tuple[Tensor, Tensor]:
    """Compute the rotary tables in the half-split (Hugging Face) arrangement.

    Args:
        config: The network's shape.

    Returns:
        The cosine and sine tables, each of shape (context, head_dim).
    """
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu") / config.head_dim
    angles = torch.outer(
        torch.arange(config.context, dtype=torch.float32, device="cpu"), config.rope_theta**-steps
    )
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position angles to queries or keys.

    Args:
        x: A tensor of shape (batch, heads, time, head_dim).
        cos: Cosines for these positions.
        sin: Sines for these positions.

    Returns:
        The rotated tensor.
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class KVCache:
    """Keys and values of earlier positions in one block."""

    def __init__(self) -> None:
        """Begin without any."""
        self._held: tuple[Tensor, Tensor] | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add new positions.

        Args:
            key: New keys of shape (batch, heads, time, head_dim).
            value: New values of the same shape.

        Returns:
            All keys and values.
        """
        if self._held is not None:
            key, value = torch.cat((self._held[0], key), 2), torch.cat((self._held[1], value), 2)
        self._held = key, value
        return self._held


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, config: NetworkConfig) -> None:
        """Create the four projections.

        Args:
            config: The network's shape.
        """
        super().__init__()
        self.head_dim = config.head_dim
        self.groups = config.heads // config.kv_heads
        kv_width = config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        past: KVCache | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attend to this and earlier positions.

        Args:
            x: Hidden states of shape (batch, time, hidden).
            cos: Rotary cosines for these positions.
            sin: Rotary sines for these positions.
            past: Keys and values of the positions before; these are added to them.
            mask: True where a query may see a key, of shape (batch, 1, time, keys); without it,
                each position sees itself and those before.

        Returns:
            Hidden states of the same shape.
        """
        batch, time, _ = x.shape

        def split(projected: Tensor) -> Tensor:
            return projected.view(batch, time, -1, self.head_dim).transpose(1, 2)

        query = rotate(split(self.q_proj(x)), cos, sin)
        key, value = rotate(split(self.k_proj(x)), cos, sin), split(self.v_proj(x))
        if past is not None:
            key, value = past.extend(key, value)
        mixed = F.scaled_dot_product_attention(
            query,
            key.repeat_interleave(self.groups, dim=1),
            value.repeat_interleave(self.groups, dim=1),
            attn_mask=mask,
            is_causal=mask is None,
        )
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, time, -1))
        return out


class FeedForward(nn.Module):
    """The gated feed-forward layer."""

    def __init__(self, config: NetworkConfig) -> None:
        """Create the three projections.

        Args:
            config: The network's shape.
        """
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position by itself.

        Args:
            x: Hidden states.

        Returns:
            Hidden states of the same shape.
        """
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    """One transformer block: attention and feed-forward, each behind a norm."""

    def __init__(self, config: NetworkConfig) -> None:
        """Create the block.

        Args:
            config: The network's shape.
        """
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        past: KVCache | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Run the block.

        Args:
            x: Hidden states.
            cos: Rotary cosines.
            sin: Rotary sines.
            past: As of the attention.
            mask: As of the attention.

        Returns:
            Hidden states of the same shape.
        """
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, past, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Transformer(nn.Module):
    """Embedding, blocks and final norm."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: NetworkConfig) -> None:
        """Create the layers.

        Args:
            config: The network's shape.
        """
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Turn token ids into final hidden states.

        Args:
            ids: Token ids of shape (batch, time).

        Returns:
            Hidden states of shape (batch, time, hidden).
        """
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.norm(x)
        return out


class Network(nn.Module):
    """The language model; its output layer is the transposed embedding."""

    def __init__(self, config: NetworkConfig) -> None:
        """Create the model with freshly drawn weights.

        Args:
            config: The network's shape.
        """
        super().__init__()
        self.config = config
        self.model = Transformer(config)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.02 / math.sqrt(2 * config.layers) if residual else 0.02
                std = std * (768 / config.hidden_size) ** 0.5 if "layers" in name else std
                nn.init.normal_(parameter, std=std)

    def forward(self, ids: Tensor) -> Tensor:
        """Score the next token at every position.

        Args:
            ids: Token ids of shape (batch, time).

        Returns:
            Logits of shape (batch, time, vocabulary).
        """
        return F.linear(self.model(ids), self.model.embed_tokens.weight)

    def loss(self, ids: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Compute the weighted mean cross-entropy.

        Args:
            ids: Input token ids of shape (batch, time).
            targets: The token that follows each input.
            weights: The weight of each target.

        Returns:
            A scalar loss.
        """
        logits = self(ids).float().flatten(0, 1)
        losses = F.cross_entropy(logits, targets.flatten(), reduction="none")
        flat = weights.flatten()
        return (losses * flat).sum() / flat.sum()
