"""Differential attention: the difference of two softmax maps, in pairs of heads.

Ye et al., "Differential Transformer" (2024), section 2. Heads of the first half and those of the
second attend to the same pairs of values; the second result, times a learned factor, is taken from
the first. Keys and queries are kept as wide as a pair of values, with zeros behind them, so that
every cache and kernel serves them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from asyncgen.models.kernels.experts import Exact
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.norm import Norm
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.weight_map import WeightRule, module_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.families.config import ModelConfig
    from asyncgen.models.latent import HeadsMaker

_VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


class DifferentialHeads(Prepared):
    """Makes a layer's queries, keys and pairs of values, and takes the differences of results.

    Attributes:
        size: Size of a query, D; heads of the cache are of 2 D.
        lambdas: Four vectors of the learned factor, one behind the other, ``[4 D]``.
    """

    def __init__(self, config: ModelConfig, index: int, *, bias: bool, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised.

        Args:
            config: The model's.
            index: Number of the layer.
            bias: True if queries, keys and values have biases.
            dtype: Of the parameters.
        """
        super().__init__()
        self.size = config.head_dim // 2
        self.heads, self.keys = config.num_attention_heads, config.num_key_value_heads
        self.start = 0.8 - 0.6 * math.exp(-0.3 * index)
        self.eps = config.rms_norm_eps
        rows = (self.heads + 2 * self.keys) * self.size
        self.rows = Linear(config.hidden_size, rows, bias, dtype=dtype)
        self.lambdas = Exact(4 * self.size)

    def prepare(self) -> None:
        """Gather what `into` uses; call it again after weights were replaced or moved."""
        self._plan = (self.rows.ready().product,)

    def ready(self) -> HeadsMaker:
        """Return what makes heads of the weights as they are now."""
        self.prepare()
        return self

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """Compute queries, keys and pairs of values, before rotation.

        Args:
            x: The normalised stream, ``[N, E]``.
            out: ``[N, (H + 2 K) 2 D]``; all of it is written.

        Returns:
            ``out``.
        """
        (product,) = self._plan or self._ready()
        tokens, half = x.shape[0], self.size // 2
        rotated = self.heads + self.keys
        made = product(x).view(tokens, -1, self.size)  # [N, H + 2 K, D]
        halves = out.view(tokens, -1, 2, self.size)
        halves[:, :rotated, :, :half] = made[:, :rotated].view(tokens, rotated, 2, half)
        halves[:, :rotated, :, half:].zero_()
        # Key head k has the values of k and of k + K / 2, both modulo the half of the heads.
        pairs = made[:, rotated:].view(tokens, 1, 2, self.keys // 2, self.size).transpose(2, 3)
        halves[:, rotated:].view(tokens, 2, self.keys // 2, 2, self.size)[:] = pairs
        return out

    def combiner(self) -> Callable[[Tensor], Tensor]:
        """Make the function from attention's results ``[N, 2 H D]`` to their differences, ``[N, H
        D]``."""
        vectors = self.lambdas.weight.detach().float().view(2, 2, self.size)
        first, second = vectors.prod(1).sum(-1).exp().tolist()
        norm = Norm(2 * self.size, self.eps, dtype=self.rows.dtype)
        torch.nn.init.ones_(norm.weight)  # type: ignore[arg-type]
        into, kept = norm.scaler.into, 1 - self.start
        factor, pairs, wide = first - second + self.start, self.heads // 2, 2 * self.size

        def combine(attended: Tensor) -> Tensor:
            heads = attended.view(len(attended), 2, pairs, wide)
            found = heads[:, 0] - factor * heads[:, 1]
            rows = found.view(-1, wide)
            return into(rows, rows).mul_(kept).view(len(attended), -1)

        return combine


def differential_rules(config: ModelConfig, index: int) -> list[WeightRule]:
    """Give the rules of a layer's `DifferentialHeads`.

    Args:
        config: Description of the network.
        index: Number of the layer.
    """
    names, size = config.names, config.head_dim // 2
    above, target = f"{names['layers']}.{index}.", f"layers.{index}.qkv"
    rows = [config.num_attention_heads * size] + 2 * [config.num_key_value_heads * size]
    sources = [above + name for name in names["qkv"].split()]
    bias = config.layer_plans[index].has_qkv_bias
    rules = module_rules(f"{target}.rows", sources, rows, config.hidden_size, bias=bias)
    vectors = tuple(f"{above}{names['lambdas']}.{name}" for name in _VECTORS)
    return [*rules, WeightRule(f"{target}.lambdas.weight", vectors, ((size,),) * 4)]
