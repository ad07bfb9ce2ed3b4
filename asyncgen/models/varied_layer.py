"""Decoder layer of a model whose layers differ in shape, built from a `VariedLayerPlan`.

Its heads may be narrower or fewer than those of other layers. Attention gets them as wide and as
many as the widest layer has, with zeros behind them and each key head repeated; no product changes
by that. The layer may read the keys and values of an earlier layer, take in a row of its own, and
have experts beside its feed-forward.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from asyncgen.models.activations import ACTIVATIONS
from asyncgen.models.expert_rules import expert_rules
from asyncgen.models.kernels.experts import Exact, Experts
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.norm import Norm, make_scaler
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.kernels.rope import make_rotate
from asyncgen.models.kernels.routing import choose
from asyncgen.models.weight_map import WeightRule, module_rules, tensor_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.layer_plan import LayerPlan, VariedLayerPlan
    from asyncgen.models.attention.dense import AttentionContext

STREAM_NORMS = ("input_norm", "output_norm", "post_norm", "down_norm")
EXPERT_NORMS = ("beside_norm", "expert_norm", "experts_norm")
"""Norms behind the feed-forward, and before and behind the experts beside it."""


class VariedSpace:
    """State that such layers share for the tokens of a step.

    Attributes:
        inputs: Row of each layer, ``[N, P]`` each; ``None`` if there are none.
        others: Streams beside the one that layers compute, ``[S - 1, N, E]``.
        kept: Rotated keys, and values, of layers that others read, ``[N, 2K, D]``.
        rotate: Function that rotates heads.
    """

    __slots__ = ("inputs", "kept", "others", "rotate")

    def __init__(self, like: Tensor) -> None:
        """Begin for rows of the dtype and on the device of ``like``."""
        self.inputs: Sequence[Tensor] | None = None
        self.others: Tensor | None = None
        self.kept: dict[int, Tensor] = {}
        self.rotate = make_rotate(like)


class VariedLayer(Prepared):
    """One decoder layer of such a model."""

    def __init__(
        self, config: ModelConfig, index: int, *, rope: int | None, dtype: torch.dtype
    ) -> None:
        """Make the parameters; arguments are those of `DecoderLayer`."""
        super().__init__()
        plan, varied = config.layer_plans[index], config.layer_plans[index].varied
        assert varied is not None
        self.plan: LayerPlan = plan
        self.varied: VariedLayerPlan = varied
        self.index, self.rope, self.eps = index, rope, config.rms_norm_eps
        self.num_heads, self.kv_heads = config.num_attention_heads, varied.kv_heads
        self.most_kv_heads, self.most_size = config.num_key_value_heads, config.head_dim
        # True if other layers read this layer's keys and values.
        self.is_read = any(
            config.keys_of(layer) == index for layer in range(index + 1, len(config.layer_plans))
        )
        hidden, size, bias = config.hidden_size, varied.head_dim, plan.has_qkv_bias

        def norm(features: int) -> Norm:
            return Norm(features, self.eps, plan.norm, dtype=dtype)

        self.qkv = Linear(hidden, sum(_qkv_rows(config, varied)), bias, dtype=dtype)
        self.q_norm = norm(size)
        self.k_norm = norm(size) if varied.keys_of is None else None
        queries = self.num_heads * size
        self.output = Linear(queries, hidden, plan.has_output_bias, dtype=dtype)
        for name in STREAM_NORMS:
            setattr(self, name, norm(hidden))
        self.width = varied.width
        self.activate = ACTIVATIONS[plan.activation]
        self.gate_up = Linear(hidden, 2 * varied.width, dtype=dtype)
        self.down = Linear(varied.width, hidden, dtype=dtype)
        if varied.input_width:
            self.input_gate = Linear(hidden, varied.input_width, dtype=dtype)
            self.input_up = Linear(varied.input_width, hidden, dtype=dtype)
            self.taken_norm = norm(hidden)
        if plan.experts is not None:
            self.experts = Experts(hidden, plan.experts, dtype=dtype)
            self.router_scale = Exact(hidden)
            self.expert_scale = Exact(plan.experts.experts)
            for name in EXPERT_NORMS:
                setattr(self, name, norm(hidden))
        if varied.has_scalar:
            self.scalar = Exact(1)
        # Gates pass from so many deviations above the mean on.
        self.least_gate = NormalDist().inv_cdf(varied.sparsity) if varied.sparsity else None

    def prepare(self) -> None:
        """Gather what `run` uses; call it again after weights were replaced or moved."""
        norms = {
            name: module.scaler.into
            for name, module in self.named_children()
            if isinstance(module, Norm) and module not in (self.q_norm, self.k_norm)
        }
        weights = [self.q_norm.scale().expand(self.num_heads, -1)]  # type: ignore[union-attr]
        scale_values = None
        if self.k_norm is not None:
            weights.append(self.k_norm.scale().expand(self.kv_heads, -1))  # type: ignore[union-attr]
            ones = torch.ones_like(weights[1])
            scale_values = make_scaler(ones, self.varied.head_dim, self.eps, self.qkv.dtype).into
        joined = torch.cat(weights)
        scale_heads = make_scaler(joined, self.varied.head_dim, self.eps, self.qkv.dtype).into
        products = {
            name: module.ready().product
            for name, module in self.named_children()
            if isinstance(module, Linear)
        }
        if self.plan.experts is not None:
            self.experts.prepare()
            scale = self.router_scale.weight.detach().float()
            scale = scale * len(scale) ** -0.5
            norms["router"] = make_scaler(scale, len(scale), self.eps, torch.float32).into
        scalar = float(self.scalar.weight) if self.varied.has_scalar else 1.0
        self._plan = (norms, scale_heads, scale_values, products, scalar)

    def compiled(self) -> None:
        """Return ``None``: no kernel of ours computes all of it."""

    def run(
        self,
        x: Tensor,
        placed: Sequence[tuple[Tensor, ...]],
        attention: AttentionContext,
        space: VariedSpace,
    ) -> None:
        """Add this layer's output to the stream ``x`` ``[N, E]`` in place, as `DecoderLayer`
        does."""
        norms, _, _, _, scalar = self._ready()
        normed = norms["input_norm"](x, torch.empty_like(x))
        x.add_(self._attended(normed, placed, attention, space))
        x.add_(self._fed(x))
        if self.varied.input_width:
            x.add_(self._taken(x, space))
        if scalar != 1:
            x.mul_(scalar)

    def _attended(
        self,
        normed: Tensor,
        placed: Sequence[tuple[Tensor, ...]],
        attention: AttentionContext,
        space: VariedSpace,
    ) -> Tensor:
        """Compute attention of the normalised stream, normalised, ``[N, E]``."""
        norms, _, _, product, _ = self._ready()
        attended = attention.attend(self.index, self._heads(normed, placed, space))
        if self.varied.head_dim < self.most_size:
            attended = attended.view(len(normed), self.num_heads, -1)[..., : self.varied.head_dim]
            attended = attended.reshape(len(normed), -1)
        return _normed(norms["output_norm"], product["output"](attended))

    def _fed(self, x: Tensor) -> Tensor:
        """Compute the feed-forward of the stream, normalised, ``[N, E]``."""
        norms, _, _, product, _ = self._ready()
        normed = norms["post_norm"](x, torch.empty_like(x))
        gate, up = product["gate_up"](normed).split(self.width, dim=-1)
        if self.least_gate is not None:
            spread, mean = torch.std_mean(gate, dim=-1, keepdim=True, correction=0)
            gate = (gate - (mean + self.least_gate * spread)).relu_()
        branch = product["down"](self.activate(gate).mul(up))
        if self.plan.experts is not None:
            branch = norms["beside_norm"](branch, branch).add_(self._experts(x))
        return _normed(norms["down_norm"], branch)

    def _taken(self, x: Tensor, space: VariedSpace) -> Tensor:
        """Mix the layer's own row with the stream, normalised, ``[N, E]``."""
        norms, _, _, product, _ = self._ready()
        assert space.inputs is not None
        taken = self.activate(product["input_gate"](x)).mul(space.inputs[self.index])
        return _normed(norms["taken_norm"], product["input_up"](taken))

    def _experts(self, x: Tensor) -> Tensor:
        """Compute the experts of the stream ``[N, E]``; another norm of it chooses them."""
        norms, plan = self._ready()[0], self.plan.experts
        assert plan is not None
        wide = x.float()
        logits = self.experts.router(norms["router"](wide, torch.empty_like(wide)))
        ids, weights = choose(plan.routing, logits, None)
        weights = weights * self.expert_scale.weight.to(weights.dtype)[ids]
        found = torch.zeros_like(x)
        self.experts.add_chosen(found, norms["expert_norm"](x, torch.empty_like(x)), ids, weights)
        return norms["experts_norm"](found, found)

    def _heads(
        self, normed: Tensor, placed: Sequence[tuple[Tensor, ...]], space: VariedSpace
    ) -> Tensor:
        """Make the heads as the attention takes them, ``[N, H + 2K, D]``."""
        _, scale_heads, scale_values, product, _ = self._ready()
        count, size, queries, varied = (
            self.kv_heads,
            self.varied.head_dim,
            self.num_heads,
            self.varied,
        )
        rows = product["qkv"](normed).view(len(normed), -1, size)
        values = None
        if scale_values is not None:
            behind = queries if varied.values_are_keys else queries + count
            values = rows[:, behind : behind + count]
            values = scale_values(values, values.new_empty(values.shape))
            rows = rows[:, : queries + count]
        scale_heads(rows, rows)
        if self.rope is not None:
            cosines, sines = placed[self.rope]
            halves = rows.unflatten(2, (2, size // 2))
            space.rotate(halves, cosines, sines)
        heads = rows.new_zeros(len(rows), queries + 2 * self.most_kv_heads, self.most_size)
        heads[:, :queries, :size] = rows[:, :queries]
        if values is None:
            assert varied.keys_of is not None
            heads[:, queries:] = space.kept[varied.keys_of]
            return heads
        for part, first in ((rows[:, queries:], 0), (values, self.most_kv_heads)):
            repeated = part.repeat_interleave(self.most_kv_heads // count, dim=1)
            heads[:, queries + first : queries + first + self.most_kv_heads, :size] = repeated
        if self.is_read:
            space.kept[self.index] = heads[:, queries:]
        return heads


def _normed(normalise: Callable[[Tensor, Tensor], Tensor], branch: Tensor) -> Tensor:
    """Normalise a part's result in place."""
    return normalise(branch, branch)


def _qkv_rows(config: ModelConfig, varied: VariedLayerPlan) -> list[int]:
    """List the rows of queries, and of the keys and values that a layer makes itself."""
    parts = [config.num_attention_heads] + [varied.kv_heads] * (varied.keys_of is None)
    parts += [varied.kv_heads] * (varied.keys_of is None and not varied.values_are_keys)
    return [count * varied.head_dim for count in parts]


def varied_rules(config: ModelConfig, index: int) -> list[WeightRule]:
    """Give the weight rules of such a layer.

    Args:
        config: Description of the network.
        index: Number of the layer.
    """
    plan, names, hidden = config.layer_plans[index], config.names, config.hidden_size
    varied = plan.varied
    assert varied is not None
    queries = config.num_attention_heads * varied.head_dim
    rules: list[WeightRule] = []

    def add(ours: str, rows: list[int], columns: int | None = None, bias: bool = False) -> None:
        stored = [f"{names['layers']}.{index}.{name}" for name in names[ours].split()]
        target = f"layers.{index}.{ours}"
        rules.extend(module_rules(target, stored[: len(rows)], rows, columns, bias=bias))

    add("input_norm", [hidden])
    add("qkv", _qkv_rows(config, varied), hidden, plan.has_qkv_bias)
    add("q_norm", [varied.head_dim])
    if varied.keys_of is None:
        add("k_norm", [varied.head_dim])
    add("output", [hidden], queries, plan.has_output_bias)
    for name in STREAM_NORMS[1:]:
        add(name, [hidden])
    add("gate_up", [varied.width, varied.width], hidden)
    add("down", [hidden], varied.width)
    if varied.input_width:
        add("input_gate", [varied.input_width], hidden)
        add("input_up", [hidden], varied.input_width)
        add("taken_norm", [hidden])
    vectors = {"scalar": 1} if varied.has_scalar else {}
    if plan.experts is not None:
        rules += expert_rules(config, index, plan.experts)
        for name in EXPERT_NORMS:
            add(name, [hidden])
        vectors |= {"router_scale": hidden, "expert_scale": plan.experts.experts}
    for name, size in vectors.items():
        stored = f"{names['layers']}.{index}.{names[name]}"
        rules.append(tensor_rule(f"layers.{index}.{name}", stored, size))
    return rules
