"""Attention sinks: keep the first few positions and the last ones, and drop those between.

Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from asyncgen.cache.caches import Cache
from asyncgen.cache.layer_base import check_size
from asyncgen.cache.layers import DynamicLayer
from asyncgen.errors import InvalidRequestError, InWords

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor


class SinkLayer(DynamicLayer):
    """Growing layer whose keys stay as they came, and are turned anew for every reader.

    So a key is rounded once, however often it moves.

    Attributes:
        turns: Radians per position of each pair of a head, ``[D / 2]`` float32; ``None``: keys have
            no positions.
        moved: Cosines and sines by which each key is turned back, float32 ``[1 or B, 1, T, D / 2]``
            each; ``None``: no key moved.
    """

    turns: Tensor | None = None
    moved: tuple[Tensor, Tensor] | None = None

    def append(self, pair: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
        """See `CacheLayerMixin.append`."""
        keys, values = self.write(pair, first)
        return (keys, values) if self.moved is None else (self._turned(keys, first), values)

    def keep(self, places: Tensor) -> None:
        """Drop all positions but those at ``places``, int64 ``[1 or B, T]``, in order."""
        pair = self.pair
        if pair is None:
            return
        if len(places) == 1:
            self._keep(pair.index_select(3, places[0]))
            return
        shape = (*pair.shape[:3], places.shape[1], pair.shape[4])
        self._keep(pair.gather(3, places[None, :, None, :, None].expand(shape)))

    def reset(self) -> None:
        """Forget every position."""
        super().reset()
        self.moved = None

    def _half(self, which: int) -> Tensor | None:
        states = super()._half(which)
        if which or states is None or self.moved is None:
            return states
        return self._turned(states.flatten(0, 1)[:, None], 0).view(states.shape)

    def _set_half(self, which: int, states: Tensor | None) -> None:
        """Refuse to replace keys that moved; see `BufferLayer`."""
        if self.moved is not None:
            allowed = "keys of this cache moved; `reset` it first"
            raise InvalidRequestError("keys", InWords("written to a SinkCache"), allowed)
        super()._set_half(which, states)

    def _turned(self, keys: Tensor, first: int) -> Tensor:
        """Turn the keys ``[B * K, 1, T, D]`` of the positions from ``first`` on back."""
        assert self.moved is not None
        cos, sin = (each[:, :, first:] for each in self.moved)
        heads = len(keys) // (self._rows or 1)
        exact = keys.to(torch.promote_types(keys.dtype, torch.float32))
        halves = exact.view(-1, heads, keys.shape[2], 2, keys.shape[3] // 2)
        ahead, behind = halves.unbind(-2)
        turned = torch.stack((ahead * cos + behind * sin, behind * cos - ahead * sin), dim=-2)
        return turned.to(keys.dtype).view(keys.shape)


class SinkCache(Cache):
    """Keeps the first ``num_sink_tokens`` positions and the newest, ``window_length`` in all.

    Positions are those in the cache (section 3.2 of the paper): kept ones move up when others are
    dropped, and their keys are turned back as far. A model makes room before each pass
    (`make_room`), so its text may be longer than its context. Of a padded row padding is dropped
    first, so each row keeps its own first tokens. Code that calls `update` itself passes the
    angles.

    Attributes:
        window_length: Positions that are kept.
        num_sink_tokens: Number of first positions among them.
        num_read: Positions that a model has read, dropped ones and padding included.
        num_tokens: Those of each row that are no padding, int64 ``[B, 1]``; ``None`` before the
            first.
    """

    def __init__(self, window_length: int, num_sink_tokens: int) -> None:
        """Fix the numbers.

        Args:
            window_length: Positions that are kept, at least one more than the sinks.
            num_sink_tokens: At least 0.

        Raises:
            InvalidRequestError: A number is out of range.
        """
        if isinstance(num_sink_tokens, bool) or not isinstance(num_sink_tokens, int):
            raise InvalidRequestError("num_sink_tokens", num_sink_tokens, "must be an integer")
        if num_sink_tokens < 0:
            raise InvalidRequestError("num_sink_tokens", num_sink_tokens, "at least 0")
        check_size("window_length", window_length)
        if window_length <= num_sink_tokens:
            allowed = f"more than `num_sink_tokens` ({num_sink_tokens})"
            raise InvalidRequestError("window_length", window_length, allowed)
        self._open((), SinkLayer)
        self.window_length = window_length
        self.num_sink_tokens = num_sink_tokens
        self._clear()

    def _clear(self) -> None:
        self._angles: tuple[Tensor, Tensor] | None = None  # [T, D] each, see `update`
        self.num_read = 0
        self.num_tokens: Tensor | None = None
        self._is_entered = False
        # Of the kept positions: padding, bool, and how far each moved, int64, [1 or B, T] each.
        self._hidden: Tensor | None = None
        self._shifts: Tensor | None = None

    @property
    def text_length(self) -> int:
        """Positions of the text so far, dropped ones included."""
        return self.num_read

    @property
    def hidden(self) -> Tensor | None:
        """Marks of padding among all kept and announced positions, bool ``[B, T]``; ``None``: there
        is none."""
        hidden = self._hidden
        return hidden if hidden is not None and bool(hidden.any()) else None

    @property
    def _own_layers(self) -> list[SinkLayer]:
        return cast("list[SinkLayer]", self.layers)

    def ensure_layers(self, count: int) -> list[Any]:
        """Add empty layers until there are ``count``, for a model that called `make_room`.

        Raises:
            InvalidRequestError: It did not.
        """
        if not self._is_entered:
            allowed = "this model has positions that cannot move up in a cache; use DynamicCache"
            raise InvalidRequestError("past_key_values", InWords("a SinkCache"), allowed)
        return super().ensure_layers(count)

    def attention_layers(self, count: int) -> list[Any]:
        """Return the layers: models append to them, and do not go through `update`."""
        return self.ensure_layers(count)

    def make_room(self, hidden: Tensor, turns: Sequence[Tensor | None]) -> None:
        """Drop what is too much once new positions have come; each layer then appends them.

        Args:
            hidden: Marks padding among the new positions, bool ``[B, S]``.
            turns: For each layer radians per position of each pair of a head, ``[D / 2]`` float32;
                ``None``: its keys have no positions.

        Raises:
            InvalidRequestError: The cache has other rows.
        """
        self._is_entered = True
        rows, size = hidden.shape
        if self._hidden is None or self._shifts is None:
            self._hidden = hidden.new_zeros(rows, 0)
            self._shifts = torch.zeros(rows, 0, dtype=torch.int64, device=hidden.device)
        if len(self._hidden) != rows:
            allowed = f"the batch has {rows}"
            raise InvalidRequestError(
                "past_key_values", InWords(f"a cache of {len(self._hidden)} rows"), allowed
            )
        before = self._hidden.shape[1]
        excess = min(before + size - self.window_length, before - self.num_sink_tokens)
        super().ensure_layers(len(turns))
        for layer, frequencies in zip(self._own_layers, turns, strict=True):
            layer.turns = frequencies
        if excess > 0:
            self._drop(excess)
        self._hidden = torch.cat((self._hidden, hidden), dim=1)
        self._shifts = torch.nn.functional.pad(self._shifts, (0, size))
        self._turn_layers()
        self.num_read += size
        new = (~hidden).sum(dim=1, keepdim=True)
        self.num_tokens = new if self.num_tokens is None else self.num_tokens + new

    def _drop(self, excess: int) -> None:
        """Drop so many positions of each row: padding first, then those behind the sinks."""
        assert self._hidden is not None and self._shifts is not None
        hidden, shifts = self._hidden, self._shifts
        numbers = (~hidden).cumsum(dim=1) - 1  # of each token in its row
        is_behind = ~hidden & (numbers >= self.num_sink_tokens)
        is_sink = ~hidden & ~is_behind
        order = (is_behind + 2 * is_sink.long()).argsort(dim=1, stable=True)
        tokens = excess - hidden.sum(dim=1, keepdim=True).clamp(max=excess)
        places = order[:, excess:].sort(dim=1).values
        shifts = shifts + torch.where(is_behind, tokens, 0)
        self._hidden, self._shifts = hidden.gather(1, places), shifts.gather(1, places)
        shared = places[:1] if bool((places == places[:1]).all()) else places
        for layer in self._own_layers:
            layer.keep(shared)

    def _turn_layers(self) -> None:
        """Tell each layer by how much its keys are turned back; alike layers share the numbers."""
        shifts = self._shifts
        assert shifts is not None
        has_moved = bool(shifts.any())
        if bool((shifts == shifts[:1]).all()):
            shifts = shifts[:1]
        made: dict[int, tuple[Tensor, Tensor]] = {}
        for layer in self._own_layers:
            layer.moved = None
            if has_moved and layer.turns is not None:
                if id(layer.turns) not in made:
                    angles = shifts.float()[:, None, :, None] * layer.turns.to(shifts.device)
                    made[id(layer.turns)] = angles.cos(), angles.sin()
                layer.moved = made[id(layer.turns)]

    def reserve(self, length: int) -> None:
        """Allocate room for no more positions than are kept."""
        super().reserve(min(length, self.window_length))

    def crop(self, max_length: int | None = None, *, tokens_to_remove: int | None = None) -> None:
        """Refuse to take positions back: those that were dropped for them do not return.

        Raises:
            InvalidRequestError: Always.
        """
        allowed = "dropped positions do not come back; use DynamicCache"
        raise InvalidRequestError("past_key_values", InWords("a SinkCache"), allowed)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replace the rows by those of the indices ``[B]`` (int64), as beam search needs."""
        super().reorder_cache(beam_idx)
        self._change_rows(lambda table: table.index_select(0, beam_idx.to(table.device)))

    def exchange_rows(self, rows: Tensor, first: int) -> None:
        """Replace the rows by those of the indices ``[B]`` (int64), all of their positions."""
        super().exchange_rows(rows, 0)
        self._change_rows(lambda table: table.index_select(0, rows.to(table.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, copies of a row next to each other."""
        super().batch_repeat_interleave(repeats)
        self._change_rows(lambda table: table.repeat_interleave(repeats, dim=0))

    def _change_rows(self, change: Callable[[Tensor], Tensor]) -> None:
        if self._hidden is None or self._shifts is None or self.num_tokens is None:
            return
        self._hidden, self._shifts = change(self._hidden), change(self._shifts)
        self.num_tokens = change(self.num_tokens)
        self._turn_layers()

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        cache_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values ``[B, K, S, D]`` of one layer; drop what is too much.

        Args:
            key_states: ``[B, K, S, D]``; at positions from `get_seq_length` on, or from
                ``window_length - S`` on if that is less.
            value_states: ``[B, K, S, D]``.
            layer_idx: The layer.
            cache_kwargs: With rotary embeddings ``cos`` and ``sin`` of the S positions, ``[S, D]``
                or ``[B, S, D]``, in two equal halves as models give them; and
                ``partial_rotation_size``, if no more than so many of the D numbers rotate.

        Returns:
            Kept keys and values, ``[B, K, T, D]`` each. T is at most ``window_length``, except that
            nothing new is dropped.

        Raises:
            InvalidRequestError: ``cos`` without ``sin``, or the other way round.
        """
        given = cache_kwargs or {}
        cos, sin = given.get("cos"), given.get("sin")
        if (cos is None) != (sin is None):
            raise InvalidRequestError("cache_kwargs", sorted(given), "`cos` and `sin` go together")
        super().ensure_layers(layer_idx + 1)
        layer = self._own_layers[layer_idx]
        if layer_idx == 0 and cos is not None and sin is not None:
            self._remember_angles(cos, sin)
        if layer_idx == 0:
            self.num_read += key_states.shape[2]
        size, before = key_states.shape[2], layer.length
        excess = min(before + size - self.window_length, before - self.num_sink_tokens)
        keys, values = layer.update(key_states, value_states)
        if excess <= 0:
            return keys, values
        sinks = self.num_sink_tokens
        moved = keys[:, :, sinks + excess : before]
        if cos is not None:
            moved = self._rotate_back(moved, excess, given.get("partial_rotation_size"))
        keys = torch.cat((keys[:, :, :sinks], moved, keys[:, :, before:]), dim=2)
        values = torch.cat((values[:, :, :sinks], values[:, :, sinks + excess :]), dim=2)
        layer.reset()
        return layer.update(keys, values)

    def get_max_cache_shape(self, layer_idx: int = 0) -> int | None:
        """Return the most positions that are kept."""
        return self.window_length

    def reset(self) -> None:
        """Forget every position."""
        super().reset()
        self._clear()

    def _remember_angles(self, cos: Tensor, sin: Tensor) -> None:
        """Remember the angles of consecutive positions, until there are enough of them."""
        # All rows move as far, so one row is enough.
        new_cos, new_sin = (each[0] if each.dim() == 3 else each for each in (cos, sin))
        if self._angles is None:
            self._angles = new_cos, new_sin
        elif len(self._angles[0]) < self.window_length:
            old_cos, old_sin = self._angles
            self._angles = torch.cat((old_cos, new_cos)), torch.cat((old_sin, new_sin))

    def _rotate_back(self, keys: Tensor, positions: int, partial: int | None) -> Tensor:
        """Rotate keys ``[B, K, T, D]`` back by so many positions.

        The cosines and sines of two positions that lie so far apart are known; those of the
        difference follow, and their scale drops out.
        """
        if self._angles is None or not keys.shape[2]:
            return keys
        exact = torch.promote_types(keys.dtype, torch.float32)
        cos, sin = (each.to(exact) for each in self._angles)
        (near_cos, near_sin), (far_cos, far_sin) = (
            (cos[place], sin[place]) for place in (-1 - positions, -1)
        )
        scale = near_cos.square() + near_sin.square()
        turn_cos = (far_cos * near_cos + far_sin * near_sin) / scale  # [D]
        turn_sin = (far_sin * near_cos - far_cos * near_sin) / scale
        size = keys.shape[-1] if partial is None else partial
        turned, rest = keys[..., :size].to(exact), keys[..., size:]
        first, second = turned.chunk(2, dim=-1)
        swapped = torch.cat((second, -first), dim=-1)
        result = turned * turn_cos + swapped * turn_sin
        return torch.cat((result.to(keys.dtype), rest), dim=-1)
