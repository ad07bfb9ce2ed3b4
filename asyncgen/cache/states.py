"""States of texts in the place of keys and values: those of a batch's rows, and slots for many.

A state is of one size for a text of any length. It cannot be taken back by a token, so a cache of
states goes forward, is copied and starts anew; it goes back only to a mark, which drafts need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.cache.layers import DynamicLayer
from asyncgen.errors import InvalidRequestError, InWords

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncgen.families.config import ModelConfig
    from asyncgen.families.plans.state_plan import MixerPlan, StateShape


class StateLayer:
    """State that a layer keeps of the rows of a batch.

    Attributes:
        length: Positions so far, padding included.
        window: The last inputs of its convolution, ``[B, W, C]`` in the model's dtype, zero before
            the text begins; ``None``: nothing yet.
        state: Its state, ``[B, H, P, N]`` float32; ``None``: nothing yet.
    """

    window: Tensor | None
    state: Tensor | None
    is_sliding = is_compileable = is_croppable = supports_early_init = False

    def __init__(self) -> None:
        """Begin without rows."""
        self.length = 0
        self.window = self.state = None
        self._marked: tuple[int, Tensor, Tensor] | None = None

    @property
    def keys(self) -> Tensor | None:
        """The window, in the place of keys."""
        return self.window

    @property
    def values(self) -> Tensor | None:
        """The state, in the place of values."""
        return self.state

    @property
    def is_initialized(self) -> bool:
        """True if there are rows."""
        return self.window is not None

    def open(self, plan: StateShape, rows: int, like: Tensor) -> None:
        """Make the rows, all zero, if there are none yet.

        Args:
            plan: The layer's mixer.
            rows: Number of rows, B.
            like: Tensor of the dtype and on the device of the window.

        Raises:
            InvalidRequestError: There are others.
        """
        window = self.window
        if window is None:
            with torch.inference_mode(False):
                self.window = like.new_zeros(rows, plan.window, plan.convolved)
                self.state = like.new_zeros(rows, *plan.shape, dtype=torch.float32)
            return
        if window.shape[0] != rows:
            raise InvalidRequestError(
                "past_key_values",
                InWords(f"a cache of {window.shape[0]} rows"),
                f"the batch has {rows} rows; make a cache of that size",
            )
        if window.shape[1:] != (plan.window, plan.convolved) or window.dtype != like.dtype:
            raise InvalidRequestError(
                "past_key_values",
                InWords(f"a cache of {list(window.shape)} {window.dtype}"),
                f"the model has [{rows}, {plan.window}, {plan.convolved}] {like.dtype}",
            )

    def replace(self, window: Tensor, state: Tensor) -> None:
        """Set both of all rows."""
        self.window, self.state = window, state

    def reserve(self, length: int) -> None:
        """Do nothing: any number of positions fits."""

    def reorder_cache(self, rows: Tensor) -> None:
        """Replace the rows by those of the indices ``[B']``, int64."""
        self._marked = None
        if self.window is not None and self.state is not None:
            rows = rows.to(self.window.device)
            self.replace(self.window.index_select(0, rows), self.state.index_select(0, rows))

    def exchange(self, rows: Tensor, first: int) -> None:
        """Replace rows, as `Cache.exchange_rows` does."""
        self.reorder_cache(rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, copies of a row next to each other."""
        self._marked = None
        if self.window is not None and self.state is not None and repeats != 1:
            self.replace(
                self.window.repeat_interleave(repeats, 0), self.state.repeat_interleave(repeats, 0)
            )

    def mark(self) -> None:
        """Keep a copy of the present state, to go back to; the one before is forgotten."""
        if self.window is not None and self.state is not None:
            self._marked = self.length, self.window.clone(), self.state.clone()

    @property
    def marked(self) -> int:
        """Positions that it can go back to."""
        return 0 if self._marked is None else self._marked[0]

    def crop(self, length: int) -> None:
        """Keep so many positions: all, as many as were marked, or none.

        Raises:
            InvalidRequestError: It is another number.
        """
        kept = self.length + length if length < 0 else length
        if kept >= self.length:
            return
        if self._marked is not None and kept == self._marked[0]:
            self.length, window, state = self._marked
            self.replace(window.clone(), state.clone())
            return
        if kept > 0:
            raise InvalidRequestError(
                "max_length",
                length,
                f"a state after {self.length} positions does not tell what it was before; keep "
                "all of them or none",
            )
        self.reset()

    def reset(self) -> None:
        """Forget every position."""
        self.length = 0
        self.window = self.state = self._marked = None


def state_layers(cache: Cache, config: ModelConfig) -> list[StateLayer]:
    """Return the layers of a cache that keep states; a cache without positions gets them.

    They stand at the numbers of their layers; if a layer also attends, behind all others.

    Args:
        cache: Brought by the caller, or made for it.
        config: The model's.

    Raises:
        InvalidRequestError: It has keys and values in their places, or is of another number of
            layers.
    """
    count = config.num_hidden_layers
    behind = iter(range(count, count + len(config.mixing)))
    places = [
        next(behind) if config.layer_plans[layer].has_attention else layer
        for layer in config.mixing
    ]
    total = max(count, max(places) + 1)
    layers = cast("list[Any]", cache.layers)
    is_growing = isinstance(cache, DynamicCache) and all(
        isinstance(one, DynamicLayer) and not one.is_sliding for one in layers
    )
    if (is_growing or config.attending) and not any(layer.length for layer in layers):
        cache.ensure_layers(count)
        layers.extend(StateLayer() for _ in range(len(layers), total))
        for place in places:
            if not isinstance(layers[place], StateLayer):
                layers[place] = StateLayer()
    keeping = [at for at, layer in enumerate(layers) if isinstance(layer, StateLayer)]
    if len(layers) != total or keeping != sorted(places):
        others = "no" if not config.attending else "not all of them"
        raise InvalidRequestError(
            "past_key_values",
            type(cache).__name__,
            f"the {count} layers of this model keep states, and {others} keys and values; give a "
            "new `DynamicCache()`, or what a call of the model returned",
        )
    return [layers[place] for place in places]


def _of_states(cache: Cache) -> list[StateLayer]:
    layers: Iterable[Any] = getattr(cache, "layers", ())
    return [layer for layer in layers if isinstance(layer, StateLayer)]


def mark_states(cache: Cache) -> bool:
    """Keep copies of the states of a cache, to go back to; return whether it has any."""
    layers = _of_states(cache)
    for layer in layers:
        layer.mark()
    return bool(layers)


def largest_crop(cache: Cache, length: int) -> int:
    """Return the most positions, of ``length`` or fewer, that a cache can be cropped to."""
    layers = _of_states(cache)
    if all(layer.length <= length for layer in layers):
        return length
    marked = min(layer.marked for layer in layers)
    return marked if marked <= length else 0


def state_plans(config: ModelConfig) -> list[MixerPlan]:
    """List the mixers of a model."""
    return [plan.mixer for plan in config.layer_plans if plan.mixer is not None]


def slot_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Compute the bytes of one slot of `StateStorage`: the state of a text in all layers.

    Args:
        config: The model's.
        dtype: Of the windows.
    """
    total = 0
    for plan in state_plans(config):
        heads, size, numbers = plan.shape
        total += plan.window * plan.convolved * dtype.itemsize
        total += heads * size * numbers * torch.float32.itemsize
    return total


class StateStorage:
    """States of texts, one in each of ``num_slots`` slots.

    A step never writes the slots that it reads, so a step that failed, or was begun in vain, can be
    run again: a row that goes on has two slots in turn. The memory is allocated at once and not
    written: on a CPU a slot that was never used takes none.

    Attributes:
        num_slots: Number of slots.
        windows: For each layer ``[num_slots + 1, W, C]``, in the model's dtype.
        states: For each layer ``[num_slots + 1, H, P, N]`` float32. The last place of both is that
            of a text that has not begun: zero.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_slots: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Allocate the memory.

        Args:
            config: The model's.
            num_slots: States, at least 1.
            device: Device of the model.
            dtype: Dtype that it computes in.

        Raises:
            InvalidRequestError: There is no slot.
        """
        if num_slots < 1:
            raise InvalidRequestError("num_slots", num_slots, "at least 1 is needed")
        self.num_slots = num_slots
        self.device = torch.device(device)
        plans = state_plans(config)

        def room(shape: Iterable[int], dtype: torch.dtype) -> Tensor:
            made = torch.empty((num_slots + 1, *shape), dtype=dtype, device=device)
            made[-1].zero_()
            return made

        # Tensors made in inference mode cannot be written to outside of it.
        with torch.inference_mode(False):
            self.windows = [room((plan.window, plan.convolved), dtype) for plan in plans]
            self.states = [room(plan.shape, torch.float32) for plan in plans]
