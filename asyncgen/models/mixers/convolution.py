"""The gated short convolution of LFM2: three products of each token, two of which are gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.models.kernels.experts import Exact
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.mixers.native_mixer import compile_mixer
from asyncgen.models.mixers.scan import convolve
from asyncgen.models.mixers.state_mixer import StateMixer, window_taps
from asyncgen.models.mixers.state_rows import through_rows

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from asyncgen.families.plans.convolution_plan import ConvolutionPlan
    from asyncgen.models.mixers.state_rows import StateContext


class ConvolutionMixer(StateMixer):
    """Gated short convolution ``C * conv(B * x)``: Liquid AI, "LFM2 Technical Report" (2025),
    section 2.

    Attributes:
        enter: The first product: B, C and x.
        window: Weights of the convolution, ``[C, 1, W]``.
        window_bias: Its bias, ``[C]``, or ``None``.
        leave: The last product.
    """

    def __init__(self, plan: ConvolutionPlan, hidden: int, dtype: torch.dtype) -> None:
        """Make the parameters, uninitialised; arguments are those of `DeltaMixer`."""
        super().__init__()
        self.width = plan.convolved
        self.enter = Linear(hidden, 3 * plan.convolved, plan.has_bias, dtype=dtype)
        self.window = Exact(plan.convolved, 1, plan.window)
        self.window_bias = Exact(plan.convolved) if plan.has_bias else None
        self.leave = Linear(plan.convolved, hidden, plan.has_bias, dtype=dtype)

    def prepare(self) -> None:
        """Derive what `run` computes with; call it again after weights were replaced or moved."""
        if self.window.weight.is_meta:
            return
        bias = self.window_bias
        weight = window_taps(self.window)
        summand = None if bias is None else bias.weight.detach().float()
        parts = self.enter.ready(), weight, summand, self.leave.ready()
        self._plan = weight, summand, compile_mixer("ConvolutionMixer", *parts)

    def run(self, x: Tensor, layer: int, states: StateContext) -> Tensor:
        """See `StateMixer.run`."""
        before, behind, inputs = self.enter.ready().product(x).chunk(3, dim=-1)
        found = through_rows(states, layer, before * inputs, self.width, self._advance)
        return self.leave.ready().product(found.mul_(behind.float()).to(self.dtype))

    def _advance(
        self, inputs: Tensor, before: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight, bias, _ = self._plan or self._ready()
        found, window = convolve(inputs, before, weight, bias)
        return found, window, state
