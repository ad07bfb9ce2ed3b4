"""One block of a decoder, built from its plan: attention and feed-forward around one stream.

Results are written into the memory of a `Workspace` that all layers share: at batch 1 a step is
bound by the number of operator calls, and memory that stays needs no new views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from asyncgen.models.kernels.blocks import compiled_block
from asyncgen.models.kernels.experts import Exact, Experts
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.norm import Norm, make_scaler
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.kernels.rope import turner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.models.attention.dense import AttentionContext
    from asyncgen.models.config import ModelConfig
    from asyncgen.models.family.plan import BlockPlan
    from asyncgen.models.kernels.blocks import Block
    from asyncgen.models.kernels.products import Kernel


def _gelu_by_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": torch._C._nn.silu_,
    "swish": torch._C._nn.silu_,
    "gelu": F.gelu,
    "gelu_new": _gelu_by_tanh,
    "gelu_fast": _gelu_by_tanh,
    "gelu_pytorch_tanh": _gelu_by_tanh,
    "relu": torch.relu_,
    "relu2": lambda x: torch.relu_(x).square_(),
}


class Xielu(nn.Module):
    """A square and a line above zero, an exponential below, of a learned shape each.

    Huang and Schlag, "Deriving Activation Functions Using Integration" (2024), section 3.

    Attributes:
        alpha_p: Before ``softplus``, what the square is multiplied by, ``[1]``.
        alpha_n: Before ``softplus``, what the exponential is multiplied by beyond beta, ``[1]``.
        beta: Slope at zero, a scalar.
        eps: Greatest argument of the exponential, a scalar.
    """

    alpha_p: Tensor
    alpha_n: Tensor
    beta: Tensor
    eps: Tensor

    def __init__(self, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised."""
        super().__init__()
        for name, shape in XIELU_PARAMETERS.items():
            parameter = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
            self.register_parameter(name, parameter)

    def forward(self, x: Tensor) -> Tensor:
        """The activation of each element."""
        above = F.softplus(self.alpha_p)
        below = self.beta + F.softplus(self.alpha_n)
        bent = (torch.expm1(torch.minimum(x, self.eps)) - x) * below
        return torch.where(x > 0, above * x * x, bent) + self.beta * x


XIELU_PARAMETERS = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}
"""Shapes by name."""


class Workspace:
    """What layers share for N tokens: memory of intermediate results, its views, a kernel."""

    __slots__ = (
        "activated",
        "branch",
        "gate",
        "heads",
        "normed",
        "qkv",
        "turn",
        "turned",
        "up",
        "wide",
    )

    def __init__(self, config: ModelConfig, tokens: int, like: Tensor) -> None:
        """Allocate for ``tokens`` tokens, in the dtype and on the device of ``like``."""
        size, plan = config.head_dim, config.blocks[0]
        is_dense = any(block.experts is None for block in config.blocks)
        width = config.intermediate_size if is_dense else 0  # experts have memory of their own
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        self.normed = like.new_empty(tokens, config.hidden_size)
        self.qkv = like.new_empty(tokens, heads * size)
        self.wide = like.new_empty(tokens, 2 * width if plan.is_gated else width)
        self.heads = self.qkv.view(tokens, heads, size)
        self.turned = _halves(self.heads, heads - config.num_key_value_heads)
        self.gate = self.up = self.activated = self.wide
        if plan.is_gated:
            self.activated = like.new_empty(tokens, width)
            self.gate, self.up = torch.chunk(self.wide, 2, dim=-1)
        self.branch = like.new_empty(tokens, config.hidden_size) if _branches(config) else None
        self.turn = turner(like)


def _branches(config: ModelConfig) -> bool:
    """Whether something is done with what a part adds to the stream."""
    is_normed = "output_norm" in config.names or "down_norm" in config.names
    return is_normed or config.blocks[0].residual_scale != 1


def _halves(heads: Tensor, count: int) -> Tensor:
    """The first ``count`` of ``[N, H + 2K, D]`` as pairs of halves, ``[N, count, 2, D / 2]``."""
    tokens, every, size = heads.shape
    if size % 2:  # heads that nothing turns
        return heads
    return heads.view(tokens, every, 2, size // 2)[:, :count]


class DecoderLayer(Prepared):
    """One block. Which norms it has, the names of its weights tell."""

    def __init__(
        self, config: ModelConfig, index: int, *, rope: int | None, dtype: torch.dtype
    ) -> None:
        """Make the parameters.

        Args:
            config: The model's.
            index: Which layer this is.
            rope: Which of the model's ropes turns it; ``None``: none.
            dtype: Of the parameters.
        """
        super().__init__()
        self.plan: BlockPlan = config.blocks[index]
        self.index = index
        self.rope = rope
        self.num_turned = config.num_attention_heads + config.num_key_value_heads
        self.num_heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.width = config.intermediate_size
        self.eps = config.rms_norm_eps
        plan, hidden, queries = self.plan, config.hidden_size, self.num_heads * self.head_dim
        values = config.num_key_value_heads * config.head_dim

        def norm(name: str) -> Norm | None:
            if name not in config.names:
                return None
            return Norm(hidden, self.eps, plan.norm, dtype=dtype)

        self.input_norm = norm("input_norm")
        self.qkv = Linear(hidden, queries + 2 * values, plan.has_qkv_bias, dtype=dtype)
        self.q_norm = self._head_norm(self.num_heads, dtype)
        self.k_norm = self._head_norm(config.num_key_value_heads, dtype)
        self.output = Linear(queries, hidden, plan.has_output_bias, dtype=dtype)
        self.output_norm = norm("output_norm")
        self.post_norm = norm("post_norm")
        self.down_norm = norm("down_norm")
        self.sinks = Exact(self.num_heads) if config.attention[index].has_sinks else None
        if plan.experts is not None:
            self.experts = Experts(hidden, plan.experts, dtype=dtype)
            return
        self.shape = Xielu(dtype) if plan.activation == "xielu" else None
        self.activate = self.shape or ACTIVATIONS[plan.activation]
        if plan.is_gated:
            gates = self.activate is ACTIVATIONS["silu"]
            twice, bias = 2 * self.width, plan.has_up_bias
            self.gate_up = Linear(hidden, twice, bias, dtype=dtype, gates=gates)
        else:
            self.up = Linear(hidden, self.width, plan.has_up_bias, dtype=dtype)
        self.down = Linear(self.width, hidden, plan.has_down_bias, dtype=dtype)

    def _head_norm(self, count: int, dtype: torch.dtype) -> Norm | None:
        """The norm of so many heads."""
        head_norm, size = self.plan.head_norm, self.head_dim
        if head_norm is None:
            return None
        if head_norm.span == "width":
            return Norm(count * size, self.eps, head_norm.norm, dtype=dtype)
        heads = count if head_norm.span == "each" else None
        return Norm(size, self.eps, head_norm.norm, heads=heads, dtype=dtype)

    def prepare(self) -> None:
        """Gather what `run` uses; again after weights were replaced or moved."""
        sinks = None if self.sinks is None else self.sinks.weight.detach().float()
        head_norm = self.plan.head_norm
        normalise = None if head_norm is None else self._head_normaliser()
        is_after = head_norm is not None and head_norm.is_after_rope
        self._plan = (
            _into(self.input_norm),
            self.qkv.ready().into,
            None if is_after else normalise,
            normalise if is_after else None,
            sinks,
            self._adder(self.output.ready(), self.output_norm),
            _into(self.post_norm),
            self._feed_forward(),
        )

    def compiled(self) -> Block | None:
        """Its parts, where all of them are our kernels' and the block is of their shape."""
        plan, head_norm = self.plan, self.plan.head_norm
        is_serial = not plan.is_parallel and plan.residual_scale == 1 and self.rope == 0
        is_plain = self.output_norm is None and self.down_norm is None
        if not (is_serial and is_plain and (plan.is_gated or plan.experts is not None)):
            return None
        if self.input_norm is None or self.post_norm is None:
            return None
        heads_scaler = None
        if head_norm is not None:
            if head_norm.is_after_rope or head_norm.span == "width":
                return None
            heads_scaler = self._heads_scaler()
        return compiled_block(
            self.input_norm.scaler,
            self.qkv.ready(),
            heads_scaler,
            self.output.ready(),
            self.post_norm.scaler,
            self.experts if plan.experts is not None else self.gate_up.ready(),
            None if plan.experts is not None else self.down.ready(),
        )

    def run(
        self,
        x: Tensor,
        placed: Sequence[tuple[Tensor, ...]],
        attention: AttentionContext,
        space: Workspace,
    ) -> None:
        """Add this block's output to the stream ``x`` ``[N, E]`` in place.

        Args:
            x: The residual stream.
            placed: For each of the model's ropes cosines and signed sines of the tokens'
                positions, ``[N, 1, 2, D / 2]`` each, and, where queries are scaled, factors
                ``[N, 1, 1]``.
            attention: Does the attention.
            space: Memory for N tokens.
        """
        plan = self._plan or self._ready()
        input_norm, qkv_into, before, after, sinks, add_output, post_norm, feed_forward = plan
        normed = x if input_norm is None else input_norm(x, space.normed)
        qkv = qkv_into(normed, space.qkv)
        if qkv is space.qkv:
            heads, turned = space.heads, space.turned
        else:
            heads = qkv.view(qkv.shape[0], -1, self.head_dim)  # [N, H + 2K, D]
            turned = _halves(heads, self.num_turned)
        if before is not None:
            before(heads)
        if self.rope is not None:
            cosines, sines, *factors = placed[self.rope]
            space.turn(turned, cosines, sines)
            if factors:
                heads[:, : self.num_heads].mul_(factors[0])
        if after is not None:
            after(heads)
        if self.plan.is_parallel:
            if post_norm is not None:
                normed = post_norm(x, torch.empty_like(x))
            add_output(x, attention.attend(self.index, heads, sinks), space)
        else:
            add_output(x, attention.attend(self.index, heads, sinks), space)
            normed = x if post_norm is None else post_norm(x, space.normed)
        feed_forward(x, normed, space)

    def _feed_forward(self) -> Callable[[Tensor, Tensor, Workspace], None]:
        """What adds the second part's output, of the normalised stream, to the stream."""
        if self.plan.experts is not None:
            self.experts.prepare()
            return self._adder(self.experts, self.down_norm)
        up = (self.gate_up if self.plan.is_gated else self.up).ready()
        up_into, add_down = up.into, self._adder(self.down.ready(), self.down_norm)
        if up.is_gated:
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
            add_down(x, torch.mul(activate(gate), up, out=space.activated), space)

        return add

    def _adder(
        self, kernel: Kernel | Experts, norm: Norm | None
    ) -> Callable[[Tensor, Tensor, Workspace], None]:
        """What adds a product to the stream, normalised and scaled as the plan says."""
        scale = self.plan.residual_scale
        if norm is None and scale == 1:
            add_to = kernel.add_to
            return lambda x, rows, space: add_to(x, rows)
        normalise = _into(norm)

        def add(x: Tensor, rows: Tensor, space: Workspace) -> None:
            assert space.branch is not None
            branch = kernel.into(rows, space.branch)
            if normalise is not None:
                branch = normalise(branch, branch)
            x.add_(branch, alpha=scale)

        return add

    def _heads_scaler(self) -> Any:
        """One norm for queries and keys, which lie side by side, with a weight per head."""
        assert self.q_norm is not None and self.k_norm is not None
        assert self.plan.head_norm is not None
        size, keys = self.head_dim, self.num_turned - self.num_heads
        if self.plan.head_norm.norm.kind == "layer" or self.q_norm.weight is None:
            return None
        weights = [
            scale.expand(count, size)
            for norm, count in ((self.q_norm, self.num_heads), (self.k_norm, keys))
            if (scale := norm.scale()) is not None
        ]
        return make_scaler(torch.cat(weights), size, self.eps, self.q_norm.weight.dtype)

    def _head_normaliser(self) -> Callable[[Tensor], None]:
        """What normalises the queries and keys of heads ``[N, H + 2K, D]`` in place."""
        queries, turned = self.num_heads, self.num_turned
        assert self.q_norm is not None and self.k_norm is not None
        assert self.plan.head_norm is not None
        is_wide = self.plan.head_norm.span == "width"
        scaler = None if is_wide else self._heads_scaler()
        if scaler is not None:
            into = scaler.into

            def together(heads: Tensor) -> None:
                unturned = heads[:, :turned]
                into(unturned, unturned)

            return together
        parts = (
            (slice(0, queries), self.q_norm.scaler.into),
            (slice(queries, turned), self.k_norm.scaler.into),
        )

        def apart(heads: Tensor) -> None:
            for part, into in parts:
                rows = heads[:, part].flatten(1) if is_wide else heads[:, part]
                normed = into(rows, rows)
                if normed is not rows:
                    heads[:, part] = normed.view(heads[:, part].shape)

        return apart


def _into(norm: Norm | None) -> Callable[[Tensor, Tensor], Tensor] | None:
    return None if norm is None else norm.scaler.into
