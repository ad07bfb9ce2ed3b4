"""Base of all mixers: a module that goes on from a state, in one call where the kernel is ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.models.kernels.prepared import Prepared

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from asyncgen.models.kernels.experts import Exact
    from asyncgen.models.kernels.linear import Linear
    from asyncgen.models.mixers.state_rows import StateContext


class StateMixer(Prepared):
    """Mixer of tokens with a state.

    `prepare` makes a plan of tensors whose last entry is the compiled kernel, or ``None``.

    Attributes:
        leave: The last product, whose dtype is that of the mixer.
    """

    leave: Linear

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of products, which changes with the model's."""
        return self.leave.dtype

    @property
    def compiled(self) -> Any | None:
        """The mixer in one call, where every part of it is a kernel of ours."""
        return self._ready()[-1]

    def run(self, x: Tensor, layer: int, states: StateContext) -> Tensor:
        """Compute what the mixer adds to the stream.

        Args:
            x: Normalised rows of the stream, ``[N, E]``.
            layer: Number of the layer among those with states.
            states: Rows of the step, and their states.

        Returns:
            ``[N, E]``.
        """
        raise NotImplementedError


def window_taps(window: Exact) -> Tensor:
    """Lay the weights ``[C, 1, W]`` of a convolution out as `convolve` takes them, ``[W, C]``."""
    return window.weight.detach()[:, 0].float().t().contiguous()
