"""The mixers of Mamba and Mamba 2: a short convolution, then a state that tokens write and read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asyncgen.families.plans.layer_plan import NormPlan
from asyncgen.models.kernels.experts import Exact
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.norm import Norm, make_scaler
from asyncgen.models.mixers.native_mixer import compile_mixer
from asyncgen.models.mixers.scan import convolve, scan, silu, softplus
from asyncgen.models.mixers.state_mixer import StateMixer, window_taps
from asyncgen.models.mixers.state_rows import through_rows
from asyncgen.runtime.transfer import host_ints

if TYPE_CHECKING:
    from asyncgen.families.plans.state_plan import StatePlan
    from asyncgen.models.mixers.state_rows import StateContext


class MambaMixer(StateMixer):
    """Base of both mixers: products around a convolution and a recurrence.

    Attributes:
        plan: Plan of the mixer.
        enter: The first product.
        window: Weights of the convolution, ``[C, 1, W]``.
        window_bias: Its bias, ``[C]``, or ``None``.
        decay: Logarithms of the negative decays.
        skip: Factors on the inputs that bypass the state, one a head.
        leave: The last product.
    """

    def __init__(self, plan: StatePlan, hidden: int, enters: int, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised.

        Args:
            plan: Plan of the mixer.
            hidden: Width of the stream.
            enters: Features that the first product gives.
            dtype: Of products.
        """
        super().__init__()
        self.plan = plan
        self.enter = Linear(hidden, enters, plan.has_bias, dtype=dtype)
        self.window = Exact(plan.convolved, 1, plan.window)
        self.window_bias = Exact(plan.convolved) if plan.has_window_bias else None
        self.decay = Exact(*_decay_shape(plan))
        self.skip = Exact(plan.heads)
        self.leave = Linear(plan.channels, hidden, plan.has_leave_bias, dtype=dtype)

    def prepare(self) -> None:
        """Derive what `run` computes with; call it again after weights were replaced or moved."""
        if self.decay.weight.is_meta:
            return
        bias = self.window_bias
        exact = (
            window_taps(self.window),
            None if bias is None else bias.weight.detach().float(),
            -torch.exp(self.decay.weight.detach().float()).view(self.plan.heads, -1),
            self.skip.weight.detach().float(),
        )
        self._plan = *exact, self._compile(*exact)

    def _compile(
        self, window: Tensor, window_bias: Tensor | None, decay: Tensor, skip: Tensor
    ) -> Any | None:
        raise NotImplementedError

    def _convolve(self, inputs: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias, *_ = self._ready()
        found, window = convolve(inputs, before, weight, bias)
        return silu(found), window

    def _scan(
        self, state: Tensor, steps: Tensor, inputs: Tensor, enter: Tensor, leave: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute results ``[R, S, D]`` of channels ``[R, S, D]``, and the new state."""
        _, _, decay, skip, _ = self._ready()
        plan, (heads, size, _) = self.plan, self.plan.shape
        rows, length, _ = inputs.shape
        by_head = inputs.reshape(rows, length, heads, size)
        sides = [side.reshape(rows, length, plan.groups, plan.size) for side in (enter, leave)]
        found, state = scan(state, steps, decay, by_head, *sides)
        return found.add_(by_head * skip[:, None]).flatten(2), state


class SelectiveMixer(MambaMixer):
    """Mixer of Mamba: Gu and Dao (2023), section 3.4 and figure 3.

    Falcon Mamba normalises the inputs of the time steps, B and C; Zuo et al., "Falcon Mamba: The
    First Competitive Attention-free 7B Language Model" (2024), section 3. In Jamba (Lieber et al.,
    2024) these norms have weights.
    """

    def __init__(self, plan: StatePlan, hidden: int, dtype: torch.dtype) -> None:
        """See `MambaMixer`."""
        super().__init__(plan, hidden, 2 * plan.channels, dtype)
        self.select = Linear(plan.channels, plan.rank + 2 * plan.size, dtype=dtype)
        self.steps = Linear(plan.rank, plan.channels, dtype=dtype)
        self.steps_bias = Exact(plan.channels)
        if plan.has_norm_weights:
            assert plan.eps is not None
            self.steps_norm = Norm(plan.rank, plan.eps, NormPlan(), dtype=dtype)
            self.enter_norm = Norm(plan.size, plan.eps, NormPlan(), dtype=dtype)
            self.leave_norm = Norm(plan.size, plan.eps, NormPlan(), dtype=dtype)

    def run(self, x: Tensor, layer: int, states: StateContext) -> Tensor:
        """See `StateMixer.run`."""
        channels = self.plan.channels
        inputs, gate = torch.split(self.enter.ready().product(x), channels, dim=-1)
        inputs = inputs.contiguous()
        found = through_rows(states, layer, inputs, channels, self._advance)
        gated = found.mul_(silu(gate.float()))
        return self.leave.ready().product(gated.to(self.dtype))

    def _compile(
        self, window: Tensor, window_bias: Tensor | None, decay: Tensor, skip: Tensor
    ) -> Any | None:
        plan = self.plan
        norms: list[Any] = [None] * 3
        if plan.has_norm_weights:
            norms = [one.scaler for one in (self.steps_norm, self.enter_norm, self.leave_norm)]
        elif plan.eps is not None:
            sizes = (plan.rank, plan.size, plan.size)
            eps, dtype = plan.eps, self.dtype
            norms = [
                make_scaler(torch.ones(n, dtype=torch.float32, device="cpu"), n, eps, dtype)
                for n in sizes
            ]
        low, enter, leave = norms
        return compile_mixer(
            "SelectiveMixer",
            self.enter.ready(),
            window,
            window_bias,
            self.select.ready(),
            self.steps.ready(),
            self.steps_bias.weight.detach().float(),
            decay,
            skip,
            self.leave.ready(),
            low_norm=low,
            enter_norm=enter,
            leave_norm=leave,
        )

    def _advance(
        self, inputs: Tensor, before: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        plan = self.plan
        convolved, window = self._convolve(inputs, before)
        rows = convolved.view(-1, plan.channels)
        chosen = self.select.ready().product(rows.to(self.dtype))
        sides = [plan.rank, plan.size, plan.size]
        low, enter, leave = torch.split(chosen, sides, dim=-1)
        if plan.has_norm_weights:
            norms = (self.steps_norm, self.enter_norm, self.leave_norm)
            low, enter, leave = (
                norm.scaler.into(part := one.contiguous(), part)
                for norm, one in zip(norms, (low, enter, leave), strict=True)
            )
        elif plan.eps is not None:
            low, enter, leave = (_normalised(part, plan.eps) for part in (low, enter, leave))
        steps = self.steps.ready().product(low.contiguous()).float()
        steps = softplus(steps + self.steps_bias.weight.float()).view(convolved.shape)
        found, state = self._scan(state, steps, convolved, enter.float(), leave.float())
        return found, window, state


class DualMixer(MambaMixer):
    """Mixer of Mamba 2: Dao and Gu (2024), section 7.1 and figure 6."""

    def __init__(self, plan: StatePlan, hidden: int, dtype: torch.dtype) -> None:
        """See `MambaMixer`."""
        super().__init__(plan, hidden, plan.channels + plan.convolved + plan.heads, dtype)
        self.steps_bias = Exact(plan.heads)
        self.norm: Norm | None = None
        if plan.eps is not None:
            size, groups = plan.channels // plan.norm_groups, plan.norm_groups
            self.norm = Norm(size, plan.eps, NormPlan(), heads=groups, dtype=dtype)

    def prepare(self) -> None:
        """See `MambaMixer.prepare`."""
        plan, sides = self.plan, self.plan.groups * self.plan.size
        self._factors: Tensor | None = None
        if {*plan.factors} != {1.0}:
            counts = host_ints([plan.channels, plan.channels, sides, sides, plan.heads])
            factors = torch.tensor(
                plan.factors, dtype=torch.float32, device="cpu"
            ).repeat_interleave(counts)
            self._factors = factors.to(self.decay.weight.device, self.dtype)
        super().prepare()

    def run(self, x: Tensor, layer: int, states: StateContext) -> Tensor:
        """See `StateMixer.run`."""
        plan = self.plan
        x = x if plan.enter_scale == 1 else x * plan.enter_scale
        wide = self.enter.ready().product(x)
        if self._factors is not None:
            wide = wide.mul_(self._factors)
        parts = [plan.channels, plan.convolved + plan.heads]
        gate, inputs = torch.split(wide, parts, dim=-1)
        inputs = inputs.contiguous()
        found = through_rows(states, layer, inputs, plan.channels, self._advance)
        if plan.norms_first:
            found = self._normalised(found).float()
        found = found.mul_(silu(gate.float()))
        gated = found.to(self.dtype) if plan.norms_first else self._normalised(found)
        mixed = self.leave.ready().product(gated)
        return mixed if plan.leave_scale == 1 else mixed.mul_(plan.leave_scale)

    def _normalised(self, rows: Tensor) -> Tensor:
        """Normalise rows ``[N, D]`` by group, in the model's dtype."""
        rows = rows.to(self.dtype)
        if self.norm is None:
            return rows
        by_group = rows.view(len(rows), self.plan.norm_groups, -1)
        if self.plan.norm_groups == 1:
            by_group = rows
        return self.norm.scaler.into(by_group, by_group).flatten(1)

    def _compile(
        self, window: Tensor, window_bias: Tensor | None, decay: Tensor, skip: Tensor
    ) -> Any | None:
        plan, norm = self.plan, self.norm
        scaler = None
        if norm is not None:
            scaler = norm.scaler
            if plan.norms_first and (weight := norm.scale()) is not None:
                size = plan.channels // plan.norm_groups
                assert plan.eps is not None
                scaler = make_scaler(weight.float(), size, plan.eps, torch.float32)
        # A factor on rows is a factor on their products, but not on biases.
        if (plan.has_bias and plan.enter_scale != 1) or (
            plan.leave_scale != 1
            and (plan.has_leave_bias or (norm is not None and not plan.norms_first))
        ):
            return None
        factors = None if self._factors is None else self._factors.float()
        if plan.enter_scale != 1:
            ones = torch.ones(self.enter.out_features, dtype=torch.float32, device=skip.device)
            factors = (ones if factors is None else factors) * plan.enter_scale
        return compile_mixer(
            "DualMixer",
            self.enter.ready(),
            window,
            window_bias,
            self.steps_bias.weight.detach().float(),
            decay.flatten(),
            skip,
            scaler,
            self.leave.ready(),
            factors,
            heads=plan.heads,
            groups=plan.groups,
            numbers=plan.size,
            least=plan.least_step,
            most=plan.most_step,
            norms_first=plan.norms_first and norm is not None,
            scale=plan.leave_scale,
        )

    def _advance(
        self, inputs: Tensor, before: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        plan = self.plan
        entering, steps = torch.split(inputs, [plan.convolved, plan.heads], dim=-1)
        convolved, window = self._convolve(entering, before)
        sides = plan.groups * plan.size
        parts = [plan.channels, sides, sides]
        channels, enter, leave = torch.split(convolved, parts, dim=-1)
        steps = softplus(steps.float() + self.steps_bias.weight.float())
        steps = steps.clamp(plan.least_step, plan.most_step)
        found, state = self._scan(state, steps, channels, enter, leave)
        return found, window, state


def _decay_shape(plan: StatePlan) -> tuple[int, ...]:
    return (plan.channels, plan.size) if plan.kind == "selective" else (plan.heads,)


def _normalised(rows: Tensor, eps: float) -> Tensor:
    """Normalise rows by their root mean square, without weights, in float32 and rounded once."""
    wide = rows.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(rows.dtype)
