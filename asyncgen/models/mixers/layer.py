"""A block that is a norm and a mixer with a state around the stream, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.models.kernels.norm import Norm
from asyncgen.models.kernels.prepared import Prepared
from asyncgen.models.mixers.mamba import make_mixer
from asyncgen.models.mixers.native import add_mixed

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.models.config import ModelConfig
    from asyncgen.models.mixers.rows import StateContext


class MixerLayer(Prepared):
    """One block."""

    def __init__(self, config: ModelConfig, index: int, *, dtype: torch.dtype) -> None:
        """Make the parameters.

        Args:
            config: The model's.
            index: Which layer this is.
            dtype: Of the parameters.
        """
        super().__init__()
        plan = config.blocks[index]
        assert plan.mixer is not None
        self.index = index
        self.input_norm = Norm(config.hidden_size, config.rms_norm_eps, plan.norm, dtype=dtype)
        self.mixer = make_mixer(plan.mixer, config.hidden_size, dtype)

    def prepare(self) -> None:
        """Gather what `run` uses; again after weights were replaced or moved."""
        self.mixer.prepare()
        self._plan = self.input_norm.scaler.into, self.mixer.run, self.mixer.compiled

    def run(self, x: Tensor, placed: Any, states: StateContext, space: Any) -> None:
        """Add this block's output to the stream ``x`` ``[N, E]`` in place.

        Args:
            x: The residual stream.
            placed: Of no use here: a state knows what came before.
            states: What rows there are, and their states.
            space: Of no use here.
        """
        normalise, mix, compiled = self._plan or self._ready()
        normed = normalise(x, torch.empty_like(x))
        if compiled is None or states.native is None:
            x.add_(mix(normed, self.index, states))
        else:
            add_mixed(compiled, x, normed, states, self.index)
