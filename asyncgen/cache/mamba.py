"""The documented cache of Mamba, which has no keys and values: states of a fixed number of rows.

A model of the family `mamba` goes on from it and returns it; without one it keeps its states in a
`DynamicCache`, which may gain and lose rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from asyncgen.cache.caches import Cache
from asyncgen.cache.states import StateLayer
from asyncgen.cache.static import number_of_rows
from asyncgen.errors import InvalidRequestError, InWords

if TYPE_CHECKING:
    from asyncgen.families.plans.state_plan import StateShape


class MambaShape(Protocol):
    """Fields that are needed of a model's configuration.

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


class MambaLayer(StateLayer):
    """A layer of a `MambaCache`, as a model of states goes on from it."""

    def __init__(self, cache: MambaCache, index: int) -> None:
        """View a layer of a cache; nothing is copied."""
        super().__init__()
        self._cache = cache
        self._index = index
        self._view_states()

    def open(self, plan: StateShape, rows: int, like: Tensor) -> None:
        """See `StateLayer.open`; the cache may have been written to from outside since."""
        self._view_states()
        super().open(plan, rows, like)
        if self._cache.ssm_state_size != plan.shape[-1]:
            size = self._cache.ssm_state_size
            allowed = f"the model's states have {plan.shape[-1]} numbers a channel; make a new one"
            raise InvalidRequestError(
                "past_key_values", InWords(f"a MambaCache of {size}"), allowed
            )

    def replace(self, window: Tensor, state: Tensor) -> None:
        """See `StateLayer.replace`.

        Raises:
            InvalidRequestError: There are other rows than the cache was made for.
        """
        cache, rows = self._cache, self._cache.max_batch_size
        if len(window) != rows:
            allowed = "its number of rows is fixed; use `DynamicCache()`"
            raise InvalidRequestError(
                "past_key_values", InWords(f"a MambaCache of {rows} rows"), allowed
            )
        cache.conv_states[self._index].copy_(window.mT)
        cache.update_ssm_state(self._index, state[:, :, 0])
        self._view_states()

    def reset(self) -> None:
        """Set both to zero, in place."""
        self.length = 0
        self._cache.conv_states[self._index].zero_()
        self._cache.ssm_states[self._index].zero_()

    def _view_states(self) -> None:
        self.window = self._cache.conv_states[self._index].mT
        self.state = self._cache.ssm_states[self._index][:, :, None].float()


class MambaCache(Cache):
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
            device: Device of the states; ``None`` is torch's default.
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
        depth = range(config.num_hidden_layers)
        layers = [MambaLayer(self, index) for index in depth]
        self._open(layers, None)  # type: ignore[arg-type]

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
        for layer in self.layers:
            layer.reset()
