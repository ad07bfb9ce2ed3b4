"""States of the rows of a batch, left-padded if they differ; padding is no row's token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.cache.states import state_layers, state_plans
from asyncgen.models.mixers.rows import sort_rows

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache.caches import Cache
    from asyncgen.models.config import ModelConfig
    from asyncgen.models.mixers.rows import Rows


class DenseStates:
    """The `StateContext` of rows of equal length with a cache.

    One object serves a whole sequence: each forward pass goes on from the cache's states. Of a
    row, the tokens that the mask does not hide are its text, wherever they stand.

    Attributes:
        cache: The cache that goes along.
        rows: See `StateContext`.
    """

    compiled = None

    def __init__(
        self,
        config: ModelConfig,
        cache: Cache,
        attention_mask: Tensor | None = None,
        *,
        like: Tensor,
    ) -> None:
        """Continue where a cache ends.

        Args:
            config: The model's.
            cache: States so far; go on with every forward pass.
            attention_mask: ``[B, T]``, zero for padding, from position 0 of the cache; positions
                that it does not reach are tokens. ``None``: no padding.
            like: Of the model's dtype, on its device.

        Raises:
            InvalidRequestError: The cache is none for such a model.
        """
        self.cache = cache
        self.rows: list[Rows] = []
        self._plans = state_plans(config)
        self._layers = state_layers(cache, config)
        hidden = None if attention_mask is None else attention_mask == 0
        self._padding = None if hidden is None or not bool(hidden.any()) else hidden
        self._like = like

    def begin(self, rows: int, length: int) -> None:
        """Get ready for a forward pass of ``rows`` times ``length`` tokens, B and S."""
        start = self._layers[0].length
        for layer, plan in zip(self._layers, self._plans, strict=True):
            layer.open(plan, rows, self._like)
            layer.length += length
        counts, places = [length] * rows, None
        hidden = None if self._padding is None else self._padding[:, start : start + length]
        if hidden is not None and bool(hidden.any()):
            reached = hidden.shape[1]
            unseen = torch.nn.functional.pad(hidden, (0, length - reached)).tolist()
            places = [
                [row * length + at for at, is_hidden in enumerate(line) if not is_hidden]
                for row, line in enumerate(unseen)
            ]
            counts = [len(line) for line in places]
        self.rows = sort_rows(counts, places, self._like.device)

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
