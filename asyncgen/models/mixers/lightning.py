"""The mixer with lightning attention: products of keys and values, which fade at a fixed pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.families.plans.layer_plan import NormPlan
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.norm import Norm, make_scaler
from asyncgen.models.mixers.native_mixer import compile_mixer
from asyncgen.models.mixers.scan import scan, silu
from asyncgen.models.mixers.state_mixer import StateMixer
from asyncgen.models.mixers.state_rows import through_rows
from asyncgen.models.weight_map import WeightRule, module_rules

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.families.plans.lightning_plan import LightningPlan
    from asyncgen.models.mixers.state_rows import StateContext


class LightningMixer(StateMixer):
    """Attention without a softmax, whose keys fade: ``S = exp(-slope) S + v k'``, ``y = S q``.

    Qin and others, "Lightning Attention-2" (2024), section 3.2, equation 5, computed token by
    token; with the norm and the gate of the same authors' "TransNormerLLM" (2023), section 3.3. The
    blocks of the paper are another order of the same sums; here no sum depends on how a text was
    cut.

    Attributes:
        plan: Plan of the mixer.
        enter: The first product: queries, keys and values of all heads, and gates.
        norm: Norm of the results of all heads of a token.
        leave: The last product.
    """

    def __init__(self, plan: LightningPlan, hidden: int, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised; arguments are those of `DeltaMixer`."""
        super().__init__()
        self.plan = plan
        self.enter = Linear(hidden, 4 * plan.channels, dtype=dtype)
        self.norm = Norm(plan.channels, plan.eps, NormPlan(), dtype=dtype)
        self.leave = Linear(plan.channels, hidden, dtype=dtype)

    def prepare(self) -> None:
        """Derive what `run` computes with; call it again after weights were replaced or moved."""
        weight = self.norm.scale()
        assert weight is not None
        if weight.is_meta:
            return
        decay = torch.tensor(self.plan.slopes, dtype=torch.float32, device=weight.device).neg()
        self._plan = decay[:, None], self._compile(decay.exp(), weight)

    def run(self, x: Tensor, layer: int, states: StateContext) -> Tensor:
        """See `StateMixer.run`."""
        channels, scale = self.plan.channels, self.plan.scale
        wide = self.enter.ready().product(x)
        inputs, gate = torch.split(wide, [3 * channels, channels], dim=-1)
        found = through_rows(states, layer, inputs.contiguous(), channels, self._advance)
        found = found.to(self.dtype)
        normed = self.norm.scaler.into(found, found).float()
        mixed = self.leave.ready().product(normed.mul_(gate.float().sigmoid()).to(self.dtype))
        return mixed if scale == 1 else mixed.mul_(scale)

    def _compile(self, kept: Tensor, weight: Tensor) -> Any | None:
        plan = self.plan
        if not weight.is_cpu:
            return None
        return compile_mixer(
            "LightningMixer",
            self.enter.ready(),
            kept,
            make_scaler(weight.float(), plan.channels, plan.eps, torch.float32),
            self.leave.ready(),
            scale=plan.scale,
        )

    def _advance(
        self, inputs: Tensor, window: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        plan, (decay, _) = self.plan, self._plan or self._ready()
        rows, length, _ = inputs.shape
        parts = silu(inputs.float()).view(rows, length, 3, plan.heads, plan.size)
        queries, keys, values = (part.contiguous() for part in parts.unbind(2))
        steps = values.new_ones(rows, length, plan.heads)
        found, state = scan(state, steps, decay, values, keys, queries)
        return found.flatten(2), window, state


def lightning_rules(target: str, stored: str, hidden: int, plan: LightningPlan) -> list[WeightRule]:
    """Give the rules of the mixer's parameters: files have queries, keys and values by head.

    Args:
        target: The mixer in our model.
        stored: The mixer in the files.
        hidden: Width of the stream.
        plan: Plan of the mixer.
    """
    wide, size = plan.channels, plan.size
    order = (
        *(
            3 * head * size + part * size + row
            for part in range(3)
            for head in range(plan.heads)
            for row in range(size)
        ),
        *range(3 * wide, 4 * wide),
    )
    sources, rows = [f"{stored}.qkv_proj", f"{stored}.output_gate"], [3 * wide, wide]
    return [
        *module_rules(f"{target}.enter", sources, rows, hidden, order=order),
        *module_rules(f"{target}.norm", [f"{stored}.norm"], [wide]),
        *module_rules(f"{target}.leave", [f"{stored}.out_proj"], [hidden], wide),
    ]
