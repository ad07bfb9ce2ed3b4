"""The mixer with the gated delta rule: short convolutions, the state, a norm behind a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.families.plans.layer_plan import NormPlan
from asyncgen.models.kernels.experts import Exact
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.norm import Norm, make_scaler
from asyncgen.models.mixers.gated_delta import LEAST, gated_delta, of_length_one
from asyncgen.models.mixers.native_mixer import compile_mixer
from asyncgen.models.mixers.scan import convolve, silu, softplus
from asyncgen.models.mixers.state_mixer import StateMixer, window_taps
from asyncgen.models.mixers.state_rows import through_rows

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.families.plans.delta_plan import DeltaPlan
    from asyncgen.models.mixers.state_rows import StateContext


class DeltaMixer(StateMixer):
    """Gated delta rule: Yang, Kautz and Hatamizadeh, "Gated Delta Networks" (2024), section 3.4,
    figure 1.

    A plan with a rank is Kimi Delta Attention: Kimi Team, "Kimi Linear: An Expressive, Efficient
    Attention Architecture" (2025), equation 1 and section 4. Each feature of a key has a decay,
    which like the gates is made of a short row, and gates are sigmoids. Rates up to 2 are those of
    Grazzi and others, "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues"
    (2024).

    Attributes:
        plan: Plan of the mixer.
        enter: The first product: queries, keys, values, rates, time steps, and gates; the last two
            may be short rows that they are made of.
        window: Weights of the convolution of the first three, ``[C, 1, W]``.
        decays: Makes time steps of a short row, one for each feature of a key; ``None``: `enter`
            does.
        gates: Makes gates of the other short row, or ``None``.
        decay: Logarithms of the negative decays, one a head.
        steps_bias: Added to the time steps.
        norm: Norm of each head's results.
        leave: The last product.
    """

    def __init__(self, plan: DeltaPlan, hidden: int, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised.

        Args:
            plan: Plan of the mixer.
            hidden: Width of the stream.
            dtype: Of products.
        """
        super().__init__()
        self.plan = plan
        self.enter = Linear(hidden, sum(plan.entering), dtype=dtype)
        self.window = Exact(plan.convolved, 1, plan.window)
        self.decays = self.gates = None
        if plan.rank:
            self.decays = Linear(plan.rank, plan.decays, dtype=dtype)
            self.gates = Linear(plan.rank, plan.channels, dtype=dtype)
        self.decay = Exact(*((1, 1, plan.heads, 1) if plan.rank else (plan.heads,)))
        self.steps_bias = Exact(plan.decays)
        self.norm = Norm(plan.values, plan.eps, NormPlan(), dtype=dtype)
        self.leave = Linear(plan.channels, hidden, dtype=dtype)

    def prepare(self) -> None:
        """Derive what `run` computes with; call it again after weights were replaced or moved."""
        if self.decay.weight.is_meta:
            return
        exact = (
            window_taps(self.window),
            -torch.exp(self.decay.weight.detach().float().flatten()),
            self.steps_bias.weight.detach().float(),
        )
        self._plan = *exact, self._compile(*exact)

    def run(self, x: Tensor, layer: int, states: StateContext) -> Tensor:
        """See `StateMixer.run`."""
        plan = self.plan
        wide = self.enter.ready().product(x)
        inputs, steps, gate = torch.split(wide, list(plan.entering), dim=-1)
        if self.decays is not None and self.gates is not None:
            steps = self.decays.ready().product(steps.contiguous())
            gate = self.gates.ready().product(gate.contiguous())
        inputs = torch.cat((inputs, steps), dim=-1)
        found = through_rows(states, layer, inputs, plan.channels, self._advance)
        by_head = found.to(self.dtype).view(-1, plan.values)
        normed = self.norm.scaler.into(by_head, by_head).view(found.shape).float()
        passed = gate.float().sigmoid() if plan.rank else silu(gate.float())
        return self.leave.ready().product(normed.mul_(passed).to(self.dtype))

    def _compile(self, window: Tensor, decay: Tensor, steps_bias: Tensor) -> Any | None:
        plan = self.plan
        # x / sqrt(sum(x²) + eps) is the norm by the root mean square, times a factor.
        root = plan.keys**-0.5
        factors = torch.full(
            (2 * plan.key_heads, plan.keys), root, dtype=torch.float32, device="cpu"
        )
        factors[: plan.key_heads] *= root
        scale = self.norm.scale()
        if scale is None or not scale.is_cpu:
            return None
        by_head = scale.float().expand(plan.heads, -1)
        return compile_mixer(
            "DeltaMixer",
            self.enter.ready(),
            window,
            None,
            make_scaler(factors, plan.keys, LEAST / plan.keys, torch.float32),
            steps_bias,
            decay.repeat_interleave(plan.decays // plan.heads),
            make_scaler(by_head, plan.values, plan.eps, torch.float32),
            self.leave.ready(),
            heads=plan.heads,
            decays=self.decays and self.decays.ready(),
            gates=self.gates and self.gates.ready(),
            most_rate=plan.most_rate,
        )

    def _advance(
        self, inputs: Tensor, before: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        plan = self.plan
        weight, decay, bias, _ = self._plan or self._ready()
        entering, rates, steps = torch.split(
            inputs, [plan.convolved, plan.heads, plan.decays], dim=-1
        )
        found, window = convolve(entering, before, weight, None)
        width = plan.key_heads * plan.keys
        queries, keys, values = torch.split(silu(found), [width, width, plan.channels], dim=-1)
        rows, length, _ = inputs.shape
        by_key = rows, length, plan.key_heads, plan.keys
        found, state = gated_delta(
            state,
            of_length_one(queries.reshape(by_key)).mul_(plan.keys**-0.5),
            of_length_one(keys.reshape(by_key)),
            values.reshape(rows, length, plan.heads, plan.values),
            decay[:, None] * softplus(steps.float() + bias).view(rows, length, plan.heads, -1),
            rates.float().sigmoid().mul_(plan.most_rate),
        )
        return found.flatten(2), window, state
