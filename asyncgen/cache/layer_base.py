"""Base of the cache of one layer: the methods that code of users calls, and those of attention.

A class of a user's own needs only what the documented base asks for: `lazy_initialization`,
`update`, `get_mask_sizes`, `get_seq_length` and `get_max_length`. Everything that attention and
decoding strategies need beside these is derived here from them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.runtime.transfer import given_tensor, host_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class CacheLayerMixin(ABC):
    """Base of the cache of one layer.

    Attributes:
        keys: All keys that are kept, ``[B, K, T, D]``; ``None`` before the first.
        values: All values that are kept, ``[B, K, T, D]``; ``None`` before the first.
        is_initialized: True if shape, dtype and device are known.
        is_compileable: True if its tensors stay where they are from step to step.
        is_sliding: True if only positions in a window are kept.
        is_croppable: True if `crop` leaves it as it was before the positions that go.
        supports_early_init: True if `lazy_initialization` can be called before the first keys.
    """

    is_compileable = False
    is_sliding = False
    is_croppable = False
    supports_early_init = True
    dtype: torch.dtype | None = None
    device: torch.device | None = None

    def __init__(self) -> None:
        """Start without keys and values."""
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._is_initialized = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let attention go through `update` where a class writes its own."""
        super().__init_subclass__(**kwargs)
        if "update" in vars(cls) and "append" not in vars(cls):
            # Attention calls `append`: one that is inherited would pass by the new `update`.
            cls.append = CacheLayerMixin.append  # type: ignore[method-assign]

    @property
    def keys(self) -> Tensor | None:
        """All keys that are kept, ``[B, K, T, D]``, or ``None`` before the first."""
        return self._keys

    @keys.setter
    def keys(self, states: Tensor | None) -> None:
        self._keys = states

    @property
    def values(self) -> Tensor | None:
        """All values that are kept, ``[B, K, T, D]``, or ``None`` before the first."""
        return self._values

    @values.setter
    def values(self, states: Tensor | None) -> None:
        self._values = states

    @property
    def is_initialized(self) -> bool:
        """True if shape, dtype and device are known."""
        return self._is_initialized

    @is_initialized.setter
    def is_initialized(self, is_initialized: bool) -> None:
        self._is_initialized = is_initialized

    @property
    def length(self) -> int:
        """Positions so far, dropped ones included."""
        return int(self.get_seq_length())

    @abstractmethod
    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take shape, dtype and device from keys and values ``[B, K, S, D]``; S may be 0."""

    @abstractmethod
    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values ``[B, K, S, D]``; return those to attend to, ``[B, K, T, D]``."""

    @abstractmethod
    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the size T of what `update` of so many positions returns, and its first
        position."""

    @abstractmethod
    def get_seq_length(self) -> int:
        """Return the number of positions so far, dropped ones included."""

    @abstractmethod
    def get_max_length(self) -> int:
        """Return the most positions that are kept, or -1 if there is no limit."""

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """Add the keys and values of S positions, as attention does.

        Args:
            pair: ``[2, B, K, S, D]``, keys and values.
            first: First position wanted back; a sliding window needs no earlier ones.

        Returns:
            Keys and values of positions ``first`` to the end, each ``[B * K, 1, T, D]``: rows and
            heads are merged, as grouped attention wants them.

        Raises:
            InvalidRequestError: The layer was made for other rows or another dtype, or is full, or
                `update` returns fewer positions than are wanted.
        """
        size = pair.shape[3]
        end, (_, offset) = self.length + size, self.get_mask_sizes(size)
        states = self.update(pair[0], pair[1])
        return _flat_part(type(self).__name__, states, offset, first, end)

    def reserve(self, length: int) -> None:
        """Allocate room for ``length`` positions at once, where that is of use."""
        return

    def exchange(self, rows: Tensor, first: int) -> None:
        """Replace the content of rows from position ``first`` on by that of others.

        Args:
            rows: For each row the one that replaces it, int64 ``[B]``.
            first: Before this position a row and its replacement are equal.
        """
        self.reorder_cache(rows)

    def crop(self, max_length: int | None = None, *, tokens_to_remove: int | None = None) -> None:
        """Forget the last positions.

        Args:
            max_length: Positions to keep; or, if negative, how many to take away.
            tokens_to_remove: How many to take away, negative or not; in place of ``max_length``.

        Raises:
            InvalidRequestError: Not one of the two is given; or ``max_length`` is 0, which older
                code means as "keep none" and newer code as "take none away"; or the layer cannot.
        """
        if positions_left(self.length, max_length, tokens_to_remove) < self.length:
            allowed = "cannot take positions back: its class has no `crop`"
            raise InvalidRequestError("past_key_values", type(self).__name__, allowed)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace the rows by those with the given indices ``[B']`` (int64)."""
        keys, values = self.keys, self.values
        if keys is not None and values is not None and self.length:
            self.keys = keys.index_select(0, beam_idx.to(keys.device))
            self.values = values.index_select(0, beam_idx.to(values.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, copies of a row next to each other."""
        if self.keys is not None and repeats != 1:
            self.reorder_cache(host_range(len(self.keys)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor | Sequence[int] | Sequence[bool]) -> None:
        """Keep some of the rows; see `Cache.batch_select_indices`."""
        if self.keys is not None:
            self.reorder_cache(row_indices(indices, len(self.keys)))

    def reset(self) -> None:
        """Forget every position; tensors stay where they are, zeroed."""
        for states in (self.keys, self.values):
            if states is not None:
                states.zero_()

    def offload(self) -> None:
        """Move keys and values to the CPU's memory."""
        self._move(torch.device("cpu"))

    def prefetch(self) -> None:
        """Move keys and values back to the layer's device."""
        if self.device is not None:
            self._move(self.device)

    def _move(self, device: torch.device) -> None:
        if self.keys is not None and self.values is not None:
            self.keys, self.values = self.keys.to(device), self.values.to(device)

    def __repr__(self) -> str:
        """Show the name."""
        return type(self).__name__


class AttentionLayer(Protocol):
    """What attention needs of the cache of a layer; see `CacheLayerMixin`."""

    @property
    def length(self) -> int:
        """Positions so far."""

    @property
    def keys(self) -> Tensor | None:
        """All keys, ``[B, K, T, D]``."""

    @property
    def values(self) -> Tensor | None:
        """All values, ``[B, K, T, D]``."""

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`."""


class LayeredCache(Protocol):
    """What `ThroughUpdate` needs of a cache; see `asyncgen.cache.caches.Cache`."""

    layers: list[CacheLayerMixin]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of positions of a layer."""

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return what `CacheLayerMixin.get_mask_sizes` of a layer does."""

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values of one layer."""


class ThroughUpdate:
    """A layer of a cache whose class has an `update` of its own, which gets every write."""

    def __init__(self, cache: LayeredCache, index: int) -> None:
        """Stand for the layer of this number."""
        self._cache = cache
        self._index = index

    @property
    def length(self) -> int:
        """Positions so far."""
        return int(self._cache.get_seq_length(self._index))

    @property
    def keys(self) -> Tensor | None:
        """All keys, ``[B, K, T, D]``."""
        return self._cache.layers[self._index].keys

    @property
    def values(self) -> Tensor | None:
        """All values, ``[B, K, T, D]``."""
        return self._cache.layers[self._index].values

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`."""
        size = pair.shape[3]
        end, (_, offset) = self.length + size, self._cache.get_mask_sizes(size, self._index)
        states = self._cache.update(pair[0], pair[1], self._index)
        return _flat_part(type(self._cache).__name__, states, offset, first, end)


def _flat_part(
    name: str, states: tuple[Tensor, Tensor], offset: int, first: int, end: int
) -> tuple[Tensor, Tensor]:
    """Cut what an `update` returned to what attention wants, ``[B * K, 1, T, D]`` each.

    Args:
        name: Of the class, for the error.
        states: Keys and values ``[B, K, T, D]`` of positions from ``offset`` on.
        offset: Their first position.
        first: First position that is wanted.
        end: Position behind the last that is wanted.

    Raises:
        InvalidRequestError: Some that are wanted are missing.
    """
    keys, values = states
    if first < offset or keys.shape[2] < end - offset:
        raise InvalidRequestError(
            "past_key_values",
            name,
            f"`update` returned {keys.shape[2]} positions from {offset} on, and attention needs "
            f"those from {first} to {end}",
        )
    wanted = slice(first - offset, end - offset)
    return keys[:, :, wanted].flatten(0, 1)[:, None], values[:, :, wanted].flatten(0, 1)[:, None]


def check_switches(**values: object) -> None:
    """Check switches of a cache by their names: a text such as "false" counts as true elsewhere.

    Raises:
        InvalidRequestError: One is neither true nor false.
    """
    for name, value in values.items():
        if type(value) is not bool:
            raise InvalidRequestError(name, value, "must be True or False")


def check_size(name: str, value: object) -> None:
    """Check a number of rows or positions.

    Raises:
        InvalidRequestError: It is no integer of at least 1.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequestError(name, value, "must be an integer of at least 1")


def positions_left(length: int, max_length: int | None, tokens_to_remove: int | None) -> int:
    """Return how many of ``length`` positions cropping leaves.

    Args:
        length: Positions that there are.
        max_length: Positions to keep, or, if negative, to take away.
        tokens_to_remove: Positions to take away, negative or not.

    Raises:
        InvalidRequestError: Not one of the two is given, or ``max_length`` is 0 and there are
            positions: older code keeps none then, newer code takes none away.
    """
    if (max_length is None) == (tokens_to_remove is None):
        given = {"max_length": max_length, "tokens_to_remove": tokens_to_remove}
        raise InvalidRequestError("crop", given, "give one of the two")
    if tokens_to_remove is not None:
        return max(length - abs(tokens_to_remove), 0)
    assert max_length is not None
    if max_length == 0 and length:
        raise InvalidRequestError(
            "max_length",
            0,
            "means `keep none` in older code and `take none away` in newer code; write `reset()` "
            "for the first, `crop(tokens_to_remove=0)` for the second",
        )
    return max(length + max_length, 0) if max_length < 0 else min(length, max_length)


def row_indices(indices: Any, rows: int) -> Tensor:
    """Read row indices or truth values as indices, int64 ``[B']``, none of them negative."""
    allowed = f"give one or more of the {rows} rows, or a truth value for each"
    try:
        found = given_tensor(indices)
    except (RuntimeError, TypeError, ValueError) as error:
        raise InvalidRequestError("indices", indices, allowed) from error
    if found.dtype is torch.bool and found.shape == (rows,):
        found = found.nonzero()[:, 0]
    fits = found.dim() == 1 and found.numel() > 0 and not found.is_floating_point()
    if (
        found.dtype is torch.bool
        or not fits
        or not -rows <= int(found.min()) <= int(found.max()) < rows
    ):
        raise InvalidRequestError("indices", indices, allowed)
    return found.to(torch.int64) % rows
