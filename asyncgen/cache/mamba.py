"""The state of state-space models, which have no keys and values.

For code that brings its own such model: this library has none.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from asyncgen.cache.caches import number_of_rows
from asyncgen.errors import InvalidRequestError


class MambaShape(Protocol):
    """What is needed of a model's configuration.

    Attributes:
        num_hidden_layers: Layers.
        intermediate_size: Channels, C.
        state_size: State of a channel, N.
        conv_kernel: Width of the convolution, W.
    """

    num_hidden_layers: int
    intermediate_size: int
    state_size: int
    conv_kernel: int


class MambaCache:
    """Convolutional and state-space states of every layer.

    Attributes:
        max_batch_size: Batch rows, B.
        dtype: Of the states at the beginning.
        intermediate_size: Channels, C.
        ssm_state_size: State of a channel, N.
        conv_kernel_size: Width of the convolution, W.
        conv_states: One tensor ``[B, C, W]`` a layer.
        ssm_states: One tensor ``[B, C, N]`` a layer.
    """

    def __init__(
        self,
        config: MambaShape,
        batch_size: int | None = None,
        dtype: torch.dtype = torch.float16,
        device: torch.device | str | None = None,
        *,
        max_batch_size: int | None = None,
    ) -> None:
        """Begin with zeros.

        Args:
            config: The model's.
            batch_size: Batch rows.
            dtype: Of the states.
            device: Where they lie; ``None`` is torch's default.
            max_batch_size: Newer spelling of ``batch_size``.

        Raises:
            InvalidRequestError: There is no number of rows, it is below 1, or both spellings
                disagree.
        """
        rows = number_of_rows(batch_size, max_batch_size)
        if rows is None or rows < 1:
            raise InvalidRequestError("max_batch_size", rows, "a number of rows, at least 1")
        self.max_batch_size = rows
        self.dtype = dtype
        self.intermediate_size = config.intermediate_size
        self.ssm_state_size = config.state_size
        self.conv_kernel_size = config.conv_kernel

        def zeros(size: int) -> list[Tensor]:
            shape = (rows, config.intermediate_size, size)
            layers = range(config.num_hidden_layers)
            return [torch.zeros(shape, dtype=dtype, device=device) for _ in layers]

        self.conv_states = zeros(self.conv_kernel_size)
        self.ssm_states = zeros(self.ssm_state_size)

    def update_conv_state(
        self, layer_idx: int, new_conv_state: Tensor, cache_position: Tensor
    ) -> Tensor:
        """Shift the new inputs of a layer's convolution in.

        Args:
            layer_idx: The layer.
            new_conv_state: ``[B, C, W]`` for a prompt, ``[B, C, 1]`` for one position.
            cache_position: Positions of the call, int64 ``[S]``; beyond the window the newest
                input takes the last place.

        Returns:
            The layer's state, ``[B, C, W]``.
        """
        state = self.conv_states[layer_idx]
        place = cache_position.clamp(0, self.conv_kernel_size - 1).to(state.device)
        shifted = state.roll(shifts=-1, dims=-1)
        shifted[:, :, place] = new_conv_state.to(state)
        return state.copy_(shifted)

    def update_ssm_state(self, layer_idx: int, new_ssm_state: Tensor) -> Tensor:
        """Replace a layer's state by ``[B, C, N]``; return it.

        It keeps the precision it is given, which may be more than ``dtype``.
        """
        state = self.ssm_states[layer_idx]
        if new_ssm_state.dtype != state.dtype:
            state = self.ssm_states[layer_idx] = state.to(new_ssm_state.dtype)
        return state.copy_(new_ssm_state)

    def reset(self) -> None:
        """Set everything to zero, in place."""
        for state in (*self.conv_states, *self.ssm_states):
            state.zero_()
