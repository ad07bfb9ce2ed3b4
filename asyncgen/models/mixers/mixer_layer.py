"""Decoder layer with a mixer, in the place of attention or beside it, with or without a
feed-forward.

It also serves layers that have a feed-forward alone, or attention alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.families.plans.convolution_plan import ConvolutionPlan
from asyncgen.families.plans.delta_plan import DeltaPlan
from asyncgen.families.plans.griffin_plan import GriffinPlan
from asyncgen.families.plans.lightning_plan import LightningPlan
from asyncgen.families.plans.state_plan import StatePlan
from asyncgen.models.decoder_layer import DecoderLayer
from asyncgen.models.kernels.norm import NativeScaler, make_scaler
from asyncgen.models.mixers.convolution import ConvolutionMixer
from asyncgen.models.mixers.delta import DeltaMixer
from asyncgen.models.mixers.griffin import GriffinMixer
from asyncgen.models.mixers.lightning import LightningMixer
from asyncgen.models.mixers.mamba import DualMixer, SelectiveMixer
from asyncgen.models.mixers.native_mixer import add_mixed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.state_plan import MixerPlan
    from asyncgen.models.decoder_layer import Workspace
    from asyncgen.models.kernels.compiled_layers import LayerParts, Mixer


class MixerLayer(DecoderLayer):
    """One decoder layer, whose parts its plan lists.

    Attributes:
        mixer: Mixes tokens with a state; ``None``: nothing does.
        place: Number of the layer among those with states.
    """

    def __init__(
        self, config: ModelConfig, index: int, *, rope: int | None, dtype: torch.dtype
    ) -> None:
        """Make the parameters; arguments are those of `DecoderLayer`."""
        super().__init__(config, index, rope=rope, dtype=dtype)
        plan = self.plan.mixer
        self.mixer = None if plan is None else make_mixer(plan, config.hidden_size, dtype)
        self.place = -1 if plan is None else config.mixing.index(index)

    def prepare(self) -> None:
        """Gather what `run` uses; call it again after weights were replaced or moved."""
        if self.mixer is not None:
            self.mixer.prepare()
        self._residual_norms = self._make_residual_norms()
        super().prepare()

    def compiled(self) -> LayerParts | None:
        """See `DecoderLayer.compiled`."""
        block, stays = super().compiled(), self._make_residual_norms()
        if self.mixer is not None and self.output_norm is not None:
            return None  # of the mixer's result, which our kernels add as it is
        if block is None or stays is None:
            return block
        first, second = stays
        if not isinstance(first, NativeScaler) or not isinstance(second, NativeScaler):
            return None
        return block._replace(input_stay=first.compiled, post_stay=second.compiled)

    def run(
        self, x: Tensor, placed: Sequence[tuple[Tensor, ...]], attention: Any, space: Workspace
    ) -> None:
        """Add this layer's output to the stream ``x`` ``[N, E]`` in place.

        Args:
            x: The residual stream.
            placed: See `DecoderLayer.run`.
            attention: Does the attention, and has the rows and their states.
            space: Memory for N tokens.
        """
        plan = self._plan or self._ready()
        input_norm, attend, add_output, post_norm, feed_forward = plan
        normed = x if input_norm is None else input_norm(x, space.normed)
        if self._residual_norms is not None:
            self._residual_norms[0].into(x, x)
        if attend is not None:
            add_output(x, attend(normed, placed, attention, space), space)
        if self.mixer is not None:
            self._mix(x, normed, attention)
        if feed_forward is not None:
            normed = normed if post_norm is None else post_norm(x, space.normed)
            if self._residual_norms is not None:
                self._residual_norms[1].into(x, x)
            feed_forward(x, normed, space)

    def _make_residual_norms(self) -> tuple[Any, Any] | None:
        """Make the norms, with their factors, whose results replace the stream."""
        factors = self.plan.normed_residual
        if factors is None:
            return None
        made = []
        for norm, factor in zip((self.input_norm, self.post_norm), factors, strict=True):
            assert norm is not None and norm.weight is not None
            weight = norm.scale()
            assert weight is not None
            dtype = norm.weight.dtype
            made.append(make_scaler(weight.float() * factor, norm.features, norm.eps, dtype))
        return made[0], made[1]

    def _mix(self, x: Tensor, normed: Tensor, states: Any) -> None:
        """Add the mixer's result to the stream."""
        assert self.mixer is not None
        scale, compiled = self.plan.residual_scale, self.mixer.compiled
        norm = None if self.plan.has_attention else self.output_norm
        if compiled is not None and states.native is not None:
            if scale == 1 and norm is None:
                add_mixed(compiled, x, normed, states, self.place)
                return
            mixed = torch.zeros_like(x)
            add_mixed(compiled, mixed, normed, states, self.place)
        else:
            mixed = self.mixer.run(normed, self.place, states)
        if norm is not None:
            mixed = norm.scaler.into(mixed, mixed)
        x.add_(mixed if scale == 1 else mixed.mul_(scale))


def make_mixer(plan: MixerPlan, hidden: int, dtype: torch.dtype) -> Mixer:
    """Make the mixer of a plan, over a stream of a width, with products of a dtype."""
    if isinstance(plan, StatePlan):
        kind = SelectiveMixer if plan.kind == "selective" else DualMixer
        return kind(plan, hidden, dtype)
    return _MIXERS[type(plan)](plan, hidden, dtype)


_MIXERS: dict[type, Callable[[Any, int, torch.dtype], Mixer]] = {
    ConvolutionPlan: ConvolutionMixer,
    DeltaPlan: DeltaMixer,
    GriffinPlan: GriffinMixer,
    LightningPlan: LightningMixer,
}
