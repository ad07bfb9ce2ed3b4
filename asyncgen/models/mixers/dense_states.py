"""States of the rows of a batch, left-padded if they differ; padding is no row's token."""

from __future__ import annotations

from array import array
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.cache.states import state_layers, state_plans
from asyncgen.models.mixers.native_mixer import native_states
from asyncgen.models.mixers.state_rows import sort_rows
from asyncgen.runtime.transfer import host_ints

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache.caches import Cache
    from asyncgen.families.config import ModelConfig
    from asyncgen.models.mixers.state_rows import Rows


class DenseStates:
    """The `StateContext` of rows of equal length with a cache.

    One object serves a whole sequence: each forward pass goes on from the cache's states. A row's
    text is the tokens that the mask does not hide, wherever they stand.

    Attributes:
        cache: The cache that goes along.
        native: See `StateContext`. It uses the cache's own tensors if these are contiguous, else
            copies.
        order: See `StateContext`.
    """

    def __init__(
        self,
        config: ModelConfig,
        cache: Cache,
        attention_mask: Tensor | None = None,
        *,
        like: Tensor,
    ) -> None:
        """Continue at the end of a cache.

        Args:
            config: The model's.
            cache: States so far; go on with every forward pass.
            attention_mask: ``[B, T]``, zero for padding, from position 0 of the cache; positions
                beyond its end are tokens. ``None``: no padding.
            like: Tensor of the model's dtype, on its device.

        Raises:
            InvalidRequestError: The cache does not fit such a model.
        """
        self.cache = cache
        self.native: Any | None = None
        self.order: Tensor | None = None
        self._rows: list[Rows] | None = None
        self._counts: list[int] = []
        self._places: list[list[int]] | None = None
        self._held: list[tuple[Tensor, Tensor]] = []  # what `native` was made of
        self._plans = state_plans(config)
        self._layers = state_layers(cache, config)
        hidden = None if attention_mask is None else attention_mask == 0
        self._padding = None if hidden is None or not bool(hidden.any()) else hidden
        self._like = like

    def begin(self, rows: int, length: int) -> None:
        """Prepare a forward pass of ``rows`` times ``length`` tokens, B and S."""
        start = self._layers[0].length
        for layer, plan in zip(self._layers, self._plans, strict=True):
            layer.open(plan, rows, self._like)
            layer.length += length
        self._counts, self._places, self._rows = [length] * rows, None, None
        hidden = None if self._padding is None else self._padding[:, start : start + length]
        if hidden is not None and bool(hidden.any()):
            reached = hidden.shape[1]
            unseen = torch.nn.functional.pad(hidden, (0, length - reached)).tolist()
            self._places = [
                [row * length + at for at, is_hidden in enumerate(line) if not is_hidden]
                for row, line in enumerate(unseen)
            ]
            self._counts = [len(line) for line in self._places]
        self._show()

    @property
    def rows(self) -> list[Rows]:
        """See `StateContext`; made when torch asks for them."""
        if self._rows is None:
            self._rows = sort_rows(self._counts, self._places, self._like.device)
        return self._rows

    def read(self, layer: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """See `StateContext`."""
        kept = self._layers[layer]
        assert kept.window is not None and kept.state is not None
        if rows.numbers is None:
            return kept.window, kept.state
        return kept.window.index_select(0, rows.numbers), kept.state.index_select(0, rows.numbers)

    def write(self, layer: int, rows: Rows, window: Tensor, state: Tensor) -> None:
        """See `StateContext`."""
        kept = self._layers[layer]
        if rows.numbers is None:
            kept.replace(window, state)
            return
        assert kept.window is not None and kept.state is not None
        kept.replace(
            kept.window.index_copy(0, rows.numbers, window),
            kept.state.index_copy(0, rows.numbers, state),
        )

    @property
    def compiled(self) -> Any | None:
        """See `AttentionContext`: states that are all in their places, of rows without padding."""
        is_here = self.order is None and all(
            kept.window is window and kept.state is state
            for kept, (window, state) in zip(self._layers, self._held, strict=True)
        )
        return self.native if is_here else None

    def keep(self, layer: int) -> None:
        """Store what our kernels left in a layer's states."""
        kept, (window, state) = self._layers[layer], self._held[layer]
        if kept.window is not window or kept.state is not state:
            kept.replace(window, state)

    def _show(self) -> None:
        """Pass the states and rows of a pass to our kernels, if they compute."""
        layers = self._layers
        held = self._held
        if not held or any(
            kept.window is not window or kept.state is not state
            for kept, (window, state) in zip(layers, held, strict=True)
        ):
            self._held = [
                (kept.window.contiguous(), kept.state.contiguous())
                for kept in layers
                if kept.window is not None and kept.state is not None
            ]
            self.native = native_states(self._held, self._like.dtype, self._like.device)
        if self.native is None:
            return
        places = self._places
        self.order = None
        if places is not None:
            self.order = host_ints(list(chain.from_iterable(places)))
        ends = accumulate(self._counts)
        numbers: list[int] = []
        for row, (count, end) in enumerate(zip(self._counts, ends, strict=True)):
            if count:
                numbers += (end - count, count, row, row)
        self.native.lay_out(array("q", numbers))
