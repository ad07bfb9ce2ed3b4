"""The recurrent block of Griffin: a short convolution, then a state that each channel gates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch.nn import functional as F

from asyncgen.models.kernels.experts import Exact
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.mixers.native_mixer import compile_mixer
from asyncgen.models.mixers.scan import convolve
from asyncgen.models.mixers.state_mixer import StateMixer, window_taps
from asyncgen.models.mixers.state_rows import through_rows
from asyncgen.models.weight_map import WeightRule, module_rules, tensor_rule

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.families.plans.griffin_plan import GriffinPlan
    from asyncgen.models.mixers.state_rows import StateContext

_SHARPNESS: Final = 8.0
"""The constant c of equation 3."""


class GriffinMixer(StateMixer):
    """Gated recurrence ``h = a h + sqrt(1 - a²) (i x)``: De and others, "Griffin" (2024), section
    2.4.

    Its gates i and r are sigmoids of products within blocks of channels, and ``a = exp(-c
    softplus(decay) r)`` (equations 1 to 4); a text's first token has no root.

    Attributes:
        plan: Plan of the mixer.
        enter: The first product: channels, and gates of what is read.
        window: Weights of the convolution, ``[D, 1, W]``.
        window_bias: Its bias, ``[D]``.
        input_gate: Makes i of channels, by block, ``[H, D / H, D / H]`` as ``[in, out]``.
        input_bias: Added to that, ``[H, D / H]``.
        decay_gate: Makes r.
        decay_bias: Added to that.
        decay: Speed at which each channel forgets, before ``softplus``, ``[D]``.
        leave: The last product.
    """

    def __init__(self, plan: GriffinPlan, hidden: int, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised; arguments are those of `DeltaMixer`."""
        super().__init__()
        self.plan = plan
        width, heads, size = plan.convolved, plan.heads, plan.size
        self.enter = Linear(hidden, 2 * width, True, dtype=dtype)
        self.window = Exact(width, 1, plan.window)
        self.window_bias = Exact(width)
        self.input_gate = Exact(heads, size, size)
        self.input_bias = Exact(heads, size)
        self.decay_gate = Exact(heads, size, size)
        self.decay_bias = Exact(heads, size)
        self.decay = Exact(width)
        self.leave = Linear(width, hidden, True, dtype=dtype)

    def prepare(self) -> None:
        """Derive what `run` computes with; call it again after weights were replaced or moved."""
        if self.decay.weight.is_meta:
            return
        gates = self.input_gate, self.input_bias, self.decay_gate, self.decay_bias
        exact = (
            window_taps(self.window),
            self.window_bias.weight.detach().float(),
            *(gate.weight.detach().float().contiguous() for gate in gates),
            F.softplus(self.decay.weight.detach().float()).mul_(-_SHARPNESS),
        )
        enter, leave = self.enter.ready(), self.leave.ready()
        self._plan = exact, compile_mixer("GriffinMixer", enter, *exact, leave)

    def run(self, x: Tensor, layer: int, states: StateContext) -> Tensor:
        """See `StateMixer.run`."""
        inputs, gate = self.enter.ready().product(x).chunk(2, dim=-1)
        inputs = inputs.contiguous()
        found = through_rows(states, layer, inputs, self.plan.convolved, self._advance)
        gated = found.mul_(F.gelu(gate.float(), approximate="tanh"))
        return self.leave.ready().product(gated.to(self.dtype))

    def _advance(
        self, inputs: Tensor, before: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        exact, _ = self._plan or self._ready()
        weight, bias, input_gate, input_bias, decay_gate, decay_bias, decay = exact
        found, window = convolve(inputs, before, weight, bias)
        rows, length, width = found.shape
        blocks = found.view(rows * length, self.plan.heads, -1).transpose(0, 1)

        def gate(weight: Tensor, bias: Tensor) -> Tensor:
            product = torch.baddbmm(bias[:, None], blocks, weight)
            return product.transpose(0, 1).reshape(rows, length, width).sigmoid_()

        passed = found * gate(input_gate, input_bias)
        logarithms = gate(decay_gate, decay_bias).mul_(decay)
        root = (1 - torch.exp(2 * logarithms)).sqrt_()
        kept = logarithms.exp_()
        has_begun = state[:, 0, 0, -1:] != 0
        hidden = state[:, 0, 0, :-1]
        results = torch.empty_like(found)
        for token in range(length):
            factor = root[:, token]
            if token == 0:
                factor = torch.where(has_begun, factor, 1.0)
            hidden = hidden * kept[:, token] + passed[:, token] * factor
            results[:, token] = hidden
        behind = F.pad(hidden, (0, 1), value=1.0)
        return results, window, behind[:, None, None]


def griffin_rules(target: str, stored: str, hidden: int, plan: GriffinPlan) -> list[WeightRule]:
    """Give the rules of the mixer's parameters; arguments are those of `lightning_rules`."""
    width, heads, size = plan.convolved, plan.heads, plan.size
    sources = [f"{stored}.linear_x", f"{stored}.linear_y"]
    rules = module_rules(f"{target}.enter", sources, [width, width], hidden, bias=True)
    for ours, theirs, shape in (
        ("window", "conv_1d.weight", (width, 1, plan.window)),
        ("window_bias", "conv_1d.bias", (width,)),
        ("input_gate", "rg_lru.input_gate_weight", (heads, size, size)),
        ("input_bias", "rg_lru.input_gate_bias", (heads, size)),
        ("decay_gate", "rg_lru.recurrent_gate_weight", (heads, size, size)),
        ("decay_bias", "rg_lru.recurrent_gate_bias", (heads, size)),
        ("decay", "rg_lru.recurrent_param", (width,)),
    ):
        rules.append(tensor_rule(f"{target}.{ours}", f"{stored}.{theirs}", *shape))
    sources = [f"{stored}.linear_out"]
    return rules + module_rules(f"{target}.leave", sources, [hidden], width, bias=True)
