"""Latent attention: queries, keys and values of all heads, made of short rows of each token.

DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1. Keys and values are computed for each head and kept
as those of any other attention, so that every cache and kernel serves them. The latent rows
themselves are not kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.native_latent import native_latent_heads
from asyncgen.models.kernels.norm import Norm
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.weight_map import WeightRule, module_rules

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.layer_plan import LatentPlan


class HeadsMaker(Protocol):
    """Takes the place of a product's kernel."""

    @property
    def into(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Make heads of the stream ``[N, E]`` in ``[N, 3 H D]``, and return that."""


class LatentHeads(Prepared):
    """Makes a layer's queries, keys and values.

    Each half of a head of size D has the rotated features in front of the others. Narrow values
    have zeros behind them, and so have attention's results.
    """

    def __init__(
        self, hidden: int, heads: int, plan: LatentPlan, *, bias: bool, dtype: torch.dtype
    ) -> None:
        """Make the parameters, uninitialised.

        Args:
            hidden: Width of the stream, E.
            heads: Heads, H, of queries as of keys.
            plan: The sizes.
            bias: True if the latent rows have biases.
            dtype: Of the parameters.
        """
        super().__init__()
        self.plan, self.heads = plan, heads
        key = plan.rope_dim + plan.nope_dim
        rows = (plan.query_rank or 0) + plan.rank + plan.rope_dim
        self.latents = Linear(hidden, rows, bias, dtype=dtype)
        self.query_norm = None
        if plan.query_rank is not None:
            self.query_norm = Norm(plan.query_rank, plan.eps, dtype=dtype)
        self.queries = Linear(plan.query_rank or hidden, heads * key, dtype=dtype)
        self.latent_norm = Norm(plan.rank, plan.eps, dtype=dtype)
        both = heads * (plan.nope_dim + plan.values)
        self.keys_values = Linear(plan.rank, both, dtype=dtype)

    def prepare(self) -> None:
        """Gather what `into` uses; call it again after weights were replaced or moved."""
        self._plan = (
            self.latents.ready().product,
            None if self.query_norm is None else self.query_norm.scaler.into,
            self.queries.ready().product,
            self.latent_norm.scaler.into,
            self.keys_values.ready().product,
        )

    def ready(self) -> HeadsMaker:
        """Return what makes heads of the weights as they are now: our own kernel, or this
        module."""
        self.prepare()
        ours = native_latent_heads(
            self.latents.ready(),
            None if self.query_norm is None else self.query_norm.scaler,
            self.queries.ready(),
            self.latent_norm.scaler,
            self.keys_values.ready(),
            heads=self.heads,
            plan=self.plan,
        )
        return ours or self

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """Compute queries, keys and values, before rotation.

        Args:
            x: The normalised stream, ``[N, E]``.
            out: ``[N, 3 H D]``; all of it is written.

        Returns:
            ``out``.
        """
        latents, query_norm, queries, latent_norm, keys_values = self._plan or self._ready()
        plan, tokens, heads = self.plan, x.shape[0], self.heads
        each = out.view(tokens, 3, heads, plan.head_dim)
        halves = out.view(tokens, 3, heads, 2, plan.head_dim // 2)
        rotated, pairs = plan.rope_dim // 2, (plan.rope_dim + plan.nope_dim) // 2
        asked, latent, shared = latents(x).split(
            (plan.query_rank or 0, plan.rank, plan.rope_dim), dim=1
        )
        if query_norm is not None:
            x = query_norm(asked, x.new_empty(asked.shape))
        halves[:, 0, :, :, :pairs] = queries(x).view(tokens, heads, 2, pairs)
        made = keys_values(latent_norm(latent, x.new_empty(latent.shape)))
        made = made.view(tokens, heads, plan.nope_dim + plan.values)
        halves[:, 1, :, :, :rotated] = shared.view(tokens, 1, 2, rotated)
        halves[:, 1, :, :, rotated:pairs] = made[:, :, : plan.nope_dim].unflatten(-1, (2, -1))
        each[:, 2, :, : plan.values] = made[:, :, plan.nope_dim :]
        if 2 * pairs < plan.head_dim:
            halves[:, :2, :, :, pairs:].zero_()
        if plan.values < plan.head_dim:
            each[:, 2, :, plan.values :].zero_()
        return out


def latent_rules(config: ModelConfig, index: int, plan: LatentPlan) -> list[WeightRule]:
    """Give the rules of a layer's `LatentHeads`.

    Args:
        config: Description of the network.
        index: Number of the layer.
        plan: Its sizes.
    """
    names, block = config.names, config.layer_plans[index]
    hidden, heads = config.hidden_size, config.num_attention_heads
    target = f"layers.{index}.qkv"

    def sources(ours: str) -> list[str]:
        return [f"{names['layers']}.{index}.{name}" for name in names[ours].split()]

    ranks = [] if plan.query_rank is None else [plan.query_rank]
    ahead, is_interleaved = sum(ranks) + plan.rank, block.is_interleaved
    rules = module_rules(
        f"{target}.latents",
        sources("latents"),
        [*ranks, plan.rank + plan.rope_dim],
        hidden,
        bias=block.has_qkv_bias,
        order=_latent_order(ahead, plan.rope_dim) if is_interleaved else None,
    )
    if ranks:
        rules += module_rules(f"{target}.query_norm", sources("query_norm"), ranks)
    rules += module_rules(
        f"{target}.queries",
        sources("queries"),
        [heads * (plan.rope_dim + plan.nope_dim)],
        plan.query_rank or hidden,
        order=_query_order(heads, plan.rope_dim, plan.nope_dim, is_interleaved),
    )
    rules += module_rules(f"{target}.latent_norm", sources("latent_norm"), [plan.rank])
    both = heads * (plan.nope_dim + plan.values)
    return rules + module_rules(f"{target}.keys_values", sources("keys_values"), [both], plan.rank)


@lru_cache(maxsize=8)
def _latent_order(ahead: int, rope_dim: int) -> tuple[int, ...]:
    """Map our latent rows to the stored ones; the last ones are stored with rotated pairs
    adjacent."""
    first, second = range(ahead, ahead + rope_dim, 2), range(ahead + 1, ahead + rope_dim, 2)
    return (*range(ahead), *first, *second)


@lru_cache(maxsize=8)
def _query_order(heads: int, rope_dim: int, nope_dim: int, is_interleaved: bool) -> tuple[int, ...]:
    """Map our query rows to the stored ones: files have the rotated features behind the rest."""
    size = nope_dim + rope_dim
    last = tuple(range(nope_dim, size))
    firsts, seconds = last[: rope_dim // 2], last[rope_dim // 2 :]
    if is_interleaved:
        firsts, seconds = last[::2], last[1::2]
    half = nope_dim // 2
    inside = (*firsts, *range(half), *seconds, *range(half, nope_dim))
    return tuple(head * size + feature for head in range(heads) for feature in inside)
