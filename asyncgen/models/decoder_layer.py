"""One layer of a decoder, built from its plan: attention and feed-forward around one stream.

Results are written into the memory of a `Workspace` that all layers share. At batch 1 a step is
bound by the number of operator calls, and fixed memory needs no new views.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asyncgen.models.activations import ACTIVATIONS, FUSED, Xielu
from asyncgen.models.differential import DifferentialHeads
from asyncgen.models.kernels.compiled_layers import LayerParts, compile_parts, pass_gates
from asyncgen.models.kernels.experts import Exact, Experts
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.native_linear import GATES
from asyncgen.models.kernels.norm import Norm, Unweighted, make_centring, make_scaler
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.kernels.rope import make_rotate
from asyncgen.models.latent import LatentHeads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.layer_plan import HeadsPlan, LayerPlan
    from asyncgen.models.attention.dense import AttentionContext
    from asyncgen.models.kernels.products import Kernel


IN_ONE_CALL = frozenset(
    {
        "norm",
        "has_qkv_bias",
        "has_output_bias",
        "has_up_bias",
        "has_down_bias",
        "head_norm",
        "latent",
        "qkv_groups",
        "qkv_order",
        "is_interleaved",
        "activation",
        "is_gated",
        "experts",
        "is_parallel",
        "residual_scale",
        "has_attention",
        "has_feed_forward",
        "gates_in_queries",
        "mixer",
        "normed_residual",
    }
)
"""Fields of a `LayerPlan` that one call of our kernels computes, or that the weights settle. A
layer whose plan sets another field is computed step by step."""


class Workspace:
    """Shared memory of all layers for N tokens: intermediate results, views of them, a rope
    kernel."""

    __slots__ = (
        "activated",
        "branch",
        "gate",
        "heads",
        "normed",
        "pair",
        "qkv",
        "rotate",
        "rotated",
        "up",
        "wide",
    )

    def __init__(self, config: ModelConfig, tokens: int, like: Tensor) -> None:
        """Allocate for ``tokens`` tokens, in the dtype and on the device of ``like``."""
        size, plan = config.head_dim, config.layer_plans[0]
        is_dense = any(plan.experts is None for plan in config.layer_plans)
        width = config.intermediate_size if is_dense else 0  # experts have memory of their own
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        self.normed = like.new_empty(tokens, config.hidden_size)
        self.qkv = like.new_empty(tokens, heads * size)
        self.wide = like.new_empty(tokens, 2 * width if plan.is_gated else width)
        self.heads = self.qkv.view(tokens, heads, size)
        self.rotated = _halves(self.heads, heads - config.num_key_value_heads)
        self.gate = self.up = self.activated = self.wide
        if plan.is_gated:
            self.activated = like.new_empty(tokens, width)
            self.gate, self.up = torch.chunk(self.wide, 2, dim=-1)
        self.branch = like.new_empty(tokens, config.hidden_size) if _branches(config) else None
        self.pair: Tensor | None = None  # the stream, and behind it the embeddings
        self.rotate = make_rotate(like)


def _branches(config: ModelConfig) -> bool:
    """Return whether a part's result is normalised or scaled before it is added to the stream."""
    named = (config.names, *config.names_by_kind.values())
    is_normed = any("output_norm" in names or "down_norm" in names for names in named)
    experts = [plan.experts for plan in config.layer_plans if plan.experts is not None]
    block = config.layer_plans[0]
    scales = {block.residual_scale, block.output_scale, block.down_scale}
    is_scaled = scales != {1.0} or any(plan.scale != 1 for plan in experts)
    return is_normed or is_scaled


def _halves(heads: Tensor, count: int) -> Tensor:
    """View the first ``count`` of ``[N, H + 2K, D]`` as pairs of halves, ``[N, count, 2, D /
    2]``."""
    tokens, every, size = heads.shape
    if size % 2:  # no rope rotates these heads
        return heads
    return heads.view(tokens, every, 2, size // 2)[:, :count]


class DecoderLayer(Prepared):
    """One decoder layer. The names of its weights tell which norms it has."""

    def __init__(
        self, config: ModelConfig, index: int, *, rope: int | None, dtype: torch.dtype
    ) -> None:
        """Make the parameters.

        Args:
            config: The model's.
            index: Number of the layer.
            rope: Number of the model's rope that it uses; ``None``: none.
            dtype: Of the parameters.
        """
        super().__init__()
        self.plan: LayerPlan = config.layer_plans[index]
        self.index = index
        self.rope = rope
        self.mixer: Any = None  # see `MixerLayer`
        self.num_rotated = config.num_attention_heads + config.num_key_value_heads
        self.num_heads = config.num_attention_heads
        self.num_stored = self.num_rotated + config.num_key_value_heads
        self.head_dim = config.head_dim
        self.width = config.intermediate_size
        self.eps = config.rms_norm_eps
        self.attended_norm: Norm | None = None
        self.inner_norm: Norm | None = None
        self.input_norm = self._norm("input_norm", config, dtype)
        if self.plan.has_attention:
            self._make_attention(config, dtype)
        self.output_norm = self._norm("output_norm", config, dtype)
        self.post_norm = self._norm("post_norm", config, dtype)
        self.down_norm = self._norm("down_norm", config, dtype)
        if self.plan.has_feed_forward:
            self._make_feed_forward(config, dtype)

    def _norm(
        self, name: str, config: ModelConfig, dtype: torch.dtype, features: int | None = None
    ) -> Norm | None:
        if name not in config.names_of(self.index):
            return None
        return Norm(features or config.hidden_size, self.eps, self.plan.norm, dtype=dtype)

    def _make_attention(self, config: ModelConfig, dtype: torch.dtype) -> None:
        plan, hidden, queries = self.plan, config.hidden_size, self.num_heads * self.head_dim
        keys = values = config.num_key_value_heads * config.head_dim
        attended = queries
        if plan.heads is not None:
            keys, values = (plan.heads.kv_heads * one for one in (self.head_dim, plan.heads.values))
            attended = self.num_heads * plan.heads.values
        if plan.gates_in_queries:
            queries *= 2
        self.qkv: Linear | LatentHeads | DifferentialHeads
        if plan.is_differential:
            attended = queries // 2
            self.qkv = DifferentialHeads(config, self.index, bias=plan.has_qkv_bias, dtype=dtype)
        elif plan.latent is None:
            self.qkv = Linear(hidden, queries + keys + values, plan.has_qkv_bias, dtype=dtype)
        else:
            biased, attended = plan.has_qkv_bias, self.num_heads * plan.latent.values
            self.qkv = LatentHeads(hidden, self.num_heads, plan.latent, bias=biased, dtype=dtype)
        self.q_norm = self._head_norm(self.num_heads, dtype)
        self.k_norm = self._head_norm(config.num_key_value_heads, dtype)
        gates = self.num_heads if plan.gates_heads else attended
        self.attention_gate = Linear(hidden, gates, dtype=dtype) if plan.has_gate else None
        self.attended_norm = self._norm("attended_norm", config, dtype, attended)
        self.output = Linear(attended, hidden, plan.has_output_bias, dtype=dtype)
        self.sinks = Exact(self.num_heads) if config.attention[self.index].has_sinks else None

    def _make_feed_forward(self, config: ModelConfig, dtype: torch.dtype) -> None:
        plan, hidden = self.plan, config.hidden_size
        if plan.experts is not None:
            self.experts = Experts(hidden, plan.experts, dtype=dtype)
            return
        self.shape = Xielu(dtype) if plan.activation == "xielu" else None
        self.activate = self.shape or ACTIVATIONS[plan.activation]
        fused, bias = FUSED.get(plan.activation), plan.has_up_bias
        if plan.gate_scale != 1:  # our kernels know no such factor
            fused = None
        if plan.is_gated:
            fused = fused if fused in GATES else None
            self.gate_up = Linear(
                hidden,
                2 * self.width,
                bias,
                dtype=dtype,
                gates=fused is not None,
                activation=fused,
            )
        else:
            self.up = Linear(hidden, self.width, bias, dtype=dtype, activation=fused)
        self.inner_norm = self._norm("inner_norm", config, dtype, self.width)
        self.down = Linear(self.width, hidden, plan.has_down_bias, dtype=dtype)

    def _head_norm(self, count: int, dtype: torch.dtype) -> Norm | None:
        """Make the norm of so many heads."""
        head_norm, size = self.plan.head_norm, self.head_dim
        if head_norm is None:
            return None
        if head_norm.span == "width":
            return Norm(count * size, self.eps, head_norm.norm, dtype=dtype)
        heads = count if head_norm.span == "each" else None
        return Norm(size, self.eps, head_norm.norm, heads=heads, dtype=dtype)

    def prepare(self) -> None:
        """Gather what `run` uses; call it again after weights were replaced or moved."""
        plan = self.plan
        self._plan = (
            _into(self.input_norm),
            self._attention() if plan.has_attention else None,
            self._output_adder() if plan.has_attention else None,
            _into(self.post_norm),
            self._feed_forward() if plan.has_feed_forward else None,
        )

    def compiled(self) -> LayerParts | None:
        """Give its parts if our kernels have all of them and the plan asks for nothing else."""
        plan, head_norm = self.plan, self.plan.head_norm
        others = (field for field in fields(plan) if field.name not in IN_ONE_CALL)
        if any(getattr(plan, field.name) != field.default for field in others):
            return None
        if self.attended_norm is not None or self.inner_norm is not None:
            return None
        heads_scaler = keys_scaler = None
        if head_norm is not None and plan.has_attention:
            assert self.q_norm is not None and self.k_norm is not None
            if head_norm.span == "width":
                heads_scaler, keys_scaler = self.q_norm.scaler, self.k_norm.scaler
            elif (heads_scaler := self._heads_scaler()) is None:
                return None
        feed: Any = None
        if plan.has_feed_forward:
            feed = self._up().ready() if plan.experts is None else self.experts
        is_plain = plan.has_feed_forward and plan.experts is None
        return compile_parts(
            LayerParts(
                input_norm=_scaler(self.input_norm),
                qkv=self.qkv.ready() if plan.has_attention else None,
                heads_norm=heads_scaler,
                keys_norm=keys_scaler,
                is_normed_turned=heads_scaler is not None and self._is_normed_turned(),
                rope=-1 if self.rope is None or not plan.has_attention else self.rope,
                sinks=self._sinks() if plan.has_attention else None,
                output=self.output.ready() if plan.has_attention else None,
                output_norm=_scaler(self.output_norm),
                post_norm=_scaler(self.post_norm),
                up=feed,
                down=self.down.ready() if is_plain else None,
                down_norm=_scaler(self.down_norm),
                is_parallel=plan.is_parallel,
                output_scale=plan.residual_scale,
                down_scale=plan.residual_scale * self._experts_scale(),
                mixer=self.mixer,
                has_gates=plan.gates_in_queries and plan.has_attention,
            )
        )

    def run(
        self,
        x: Tensor,
        placed: Sequence[tuple[Tensor, ...]],
        attention: AttentionContext,
        space: Workspace,
    ) -> None:
        """Add this layer's output to the stream ``x`` ``[N, E]`` in place.

        Args:
            x: The residual stream.
            placed: For each of the model's ropes cosines and signed sines of the tokens' positions,
                ``[N, 1, 2, D / 2]`` each, and, if queries are scaled, factors ``[N, 1, 1]``.
            attention: Does the attention.
            space: Memory for N tokens.
        """
        plan = self._plan or self._ready()
        input_norm, attend, add_output, post_norm, feed_forward = plan
        normed = x if input_norm is None else input_norm(x, space.normed)
        attended = attend(normed, placed, attention, space)
        if self.plan.is_parallel:
            if post_norm is not None:
                normed = post_norm(x, torch.empty_like(x))
            add_output(x, attended, space)
        else:
            add_output(x, attended, space)
            normed = x if post_norm is None else post_norm(x, space.normed)
        feed_forward(x, normed, space)

    def _output_adder(self) -> Callable[[Tensor, Tensor, Workspace], None]:
        """Make the function that adds the output projection of attention to the stream."""
        return self._adder(self.output.ready(), self.output_norm, self.plan.output_scale)

    def _attention(self) -> Callable[..., Tensor]:
        """Make the function from normalised rows ``[N, E]`` to the results of attention, ``[N, H
        * D]``."""
        head_norm, rope = self.plan.head_norm, self.rope
        normalise = None if head_norm is None else self._head_normaliser()
        is_after = self._is_normed_turned()
        before, after = (None, normalise) if is_after else (normalise, None)
        qkv_into, sinks, finish = self._qkv_into(), self._sinks(), self._finisher()
        index, num_heads, count = self.index, self.num_heads, self.num_stored
        gates, scale = self.plan.gates_in_queries, self.plan.heads_scale

        def attend(
            normed: Tensor,
            placed: Sequence[tuple[Tensor, ...]],
            attention: AttentionContext,
            space: Workspace,
        ) -> Tensor:
            qkv = qkv_into(normed if scale == 1 else normed * scale, space.qkv)
            if qkv is space.qkv:
                heads, rotated = space.heads, space.rotated
            else:
                heads = qkv.view(qkv.shape[0], -1, self.head_dim)  # [N, H + 2K, D], gates behind
                rotated = _halves(heads, self.num_rotated)
            if before is not None:
                before(heads)
            if rope is not None:
                cosines, sines, *factors = placed[rope]
                space.rotate(rotated, cosines, sines)
                if factors:
                    heads[:, :num_heads].mul_(factors[0])
            if after is not None:
                after(heads)
            if gates:
                attended = attention.attend(index, heads[:, :count].contiguous(), sinks)
                return pass_gates(attended, heads[:, count:].flatten(1))
            attended = attention.attend(index, heads, sinks)
            return attended if finish is None else finish(attended, normed)

        return attend

    def _is_normed_turned(self) -> bool:
        head_norm = self.plan.head_norm
        return head_norm is not None and head_norm.is_after_rope

    def _qkv_into(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Make the product of queries, keys and values, clamped and filled up as the plan says."""
        limit = self.plan.qkv_limit
        if self.plan.heads is not None:
            assert isinstance(self.qkv, Linear)
            return self._filled_up(self.qkv.ready().product, self.plan.heads)
        if self.plan.gates_in_queries:
            assert isinstance(self.qkv, Linear)
            product = self.qkv.ready().product  # wider than the memory that layers share
            return lambda x, out: product(x)
        into: Callable[[Tensor, Tensor], Tensor] = self.qkv.ready().into
        if limit is None:
            return into
        return lambda x, out: into(x, out).clamp_(-limit, limit)

    def _filled_up(
        self, product: Callable[[Tensor], Tensor], plan: HeadsPlan
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Make the product, with heads repeated, and zeros behind values, up to those of the
        cache."""
        count, size, narrow, keys = self.num_heads, self.head_dim, plan.values, plan.kv_heads
        parts, scale = [count * size, keys * size, keys * narrow], plan.value_scale

        def into(x: Tensor, out: Tensor) -> Tensor:
            rows = len(x)
            found = torch.split(product(x), parts, dim=-1)
            heads = out.view(rows, -1, size)  # [N, H + 2K, D]
            heads[:, :count] = found[0].view(rows, count, size)
            repeated = heads[:, count:].view(rows, 2, keys, -1, size)
            repeated[:, 0] = found[1].view(rows, keys, 1, size)
            repeated[:, 1, ..., :narrow] = found[2].view(rows, keys, 1, narrow) * scale
            repeated[:, 1, ..., narrow:] = 0
            return out

        return into

    def _finisher(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Make the function that changes attention's rows ``[N, H * D]``, given its normalised
        input."""
        if isinstance(self.qkv, DifferentialHeads):
            combine = self.qkv.combiner()
            return lambda attended, normed: combine(attended)
        gate, size = self.attention_gate, self.head_dim
        product = None if gate is None else gate.ready().product
        plan = self.plan.latent or self.plan.heads
        narrow = size if plan is None else plan.values
        normalise = _into(self.attended_norm)
        if product is None and narrow == size:
            if normalise is None:
                return None
            return lambda attended, normed: normalise(attended, attended)
        by_head = self.plan.gates_heads

        def finish(attended: Tensor, normed: Tensor) -> Tensor:
            if narrow != size:  # the rest is zero
                attended = attended.view(len(attended), -1, size)[..., :narrow].flatten(1)
            if product is not None:
                gates = product(normed).sigmoid_()
                if by_head:
                    attended.view(len(attended), -1, narrow).mul_(gates[..., None])
                else:
                    attended.mul_(gates)
            return attended if normalise is None else normalise(attended, attended)

        return finish

    def _feed_forward(self) -> Callable[[Tensor, Tensor, Workspace], None]:
        """Make the function that adds the feed-forward of the normalised stream to the stream."""
        if self.plan.experts is not None:
            self.experts.prepare()
            return self._adder(self.experts, self.down_norm, self._experts_scale())
        up = self._up().ready()
        add_down = self._adder(self.down.ready(), self.down_norm, self.plan.down_scale)
        if self.inner_norm is not None:
            add_down = _behind(self.inner_norm, add_down)
        up_into, gate_scale = up.into, self.plan.gate_scale
        if up.activation is not None:
            return lambda x, normed, space: add_down(x, up_into(normed, space.activated), space)
        is_gated, activate, width = self.plan.is_gated, self.activate, self.width

        def add(x: Tensor, normed: Tensor, space: Workspace) -> None:
            wide = up_into(normed, space.wide)
            if not is_gated:
                add_down(x, activate(wide), space)
                return
            if wide is space.wide:
                gate, up = space.gate, space.up
            else:
                gate, up = torch.split(wide, width, dim=-1)
            gate = gate if gate_scale == 1 else gate.mul_(gate_scale)
            add_down(x, torch.mul(activate(gate), up, out=space.activated), space)

        return add

    def _adder(
        self, kernel: Kernel | Experts, norm: Norm | None, scale: float = 1.0
    ) -> Callable[[Tensor, Tensor, Workspace], None]:
        """Make the function that adds a product to the stream, normalised and scaled as the plan
        says."""
        scale *= self.plan.residual_scale
        if norm is None and scale == 1:
            add_to = kernel.add_to
            return lambda x, rows, space: add_to(x, rows)
        normalise = _into(norm)

        def add(x: Tensor, rows: Tensor, space: Workspace) -> None:
            assert space.branch is not None
            branch = kernel.into(rows, space.branch)
            if normalise is not None:
                branch = normalise(branch, branch)
            x.add_(branch if scale == 1 else branch.mul_(scale))

        return add

    def _up(self) -> Linear:
        """Return the feed-forward's first product."""
        return self.gate_up if self.plan.is_gated else self.up

    def _experts_scale(self) -> float:
        """Return the factor on the experts' sum, if there are any."""
        return 1.0 if self.plan.experts is None else self.plan.experts.scale

    def _sinks(self) -> Tensor | None:
        """Return the scores without a key, ``[H]`` in float32."""
        return None if self.sinks is None else self.sinks.weight.detach().float()

    def _heads_scaler(self) -> Any:
        """Join the norms of queries and keys, which lie side by side, with a weight per head."""
        assert self.q_norm is not None and self.k_norm is not None
        assert self.plan.head_norm is not None
        size, keys = self.head_dim, self.num_rotated - self.num_heads
        norm = self.plan.head_norm.norm
        if self.q_norm.weight is None:
            return None if norm.kind == "layer" else Unweighted((self.num_rotated, size), self.eps)

        def of_heads(queries: Tensor | None, others: Tensor | None) -> Tensor | None:
            if queries is None or others is None:
                return None
            return torch.cat((queries.expand(self.num_heads, size), others.expand(keys, size)))

        weight = of_heads(self.q_norm.scale(), self.k_norm.scale())
        bias = of_heads(self.q_norm.bias, self.k_norm.bias)
        dtype = self.q_norm.weight.dtype
        assert weight is not None
        if norm.kind == "layer":
            return make_centring(weight, bias, size, self.eps, dtype)
        return make_scaler(weight, size, self.eps, dtype)

    def _head_normaliser(self) -> Callable[[Tensor], None]:
        """Make the function that normalises queries and keys of heads ``[N, H + 2K, D]`` in
        place."""
        queries, rotated = self.num_heads, self.num_rotated
        assert self.q_norm is not None and self.k_norm is not None
        assert self.plan.head_norm is not None
        is_wide = self.plan.head_norm.span == "width"
        scaler = None if is_wide else self._heads_scaler()
        if scaler is not None:
            into = scaler.into

            def together(heads: Tensor) -> None:
                pairs = heads[:, :rotated]
                normed = into(pairs, pairs)
                if normed is not pairs:
                    pairs.copy_(normed)

            return together
        parts = (
            (slice(0, queries), self.q_norm.scaler.into),
            (slice(queries, rotated), self.k_norm.scaler.into),
        )

        def apart(heads: Tensor) -> None:
            for part, into in parts:
                rows = heads[:, part].flatten(1) if is_wide else heads[:, part]
                normed = into(rows, rows)
                if normed is not rows:
                    heads[:, part] = normed.view(heads[:, part].shape)

        return apart


def _behind(
    norm: Norm, add: Callable[[Tensor, Tensor, Workspace], None]
) -> Callable[[Tensor, Tensor, Workspace], None]:
    """Normalise rows before they are added."""
    into = norm.scaler.into
    return lambda x, rows, space: add(x, into(rows, rows), space)


def _scaler(norm: Norm | None) -> Any:
    return None if norm is None else norm.scaler


def _into(norm: Norm | None) -> Callable[[Tensor, Tensor], Tensor] | None:
    return None if norm is None else norm.scaler.into
