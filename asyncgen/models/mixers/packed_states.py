"""States of the rows of a packed step, each in its slot. This module knows slots, not requests."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from asyncgen.models.mixers.native_mixer import native_states
from asyncgen.models.mixers.state_rows import sort_rows
from asyncgen.runtime.transfer import host_ints, to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.cache.states import StateStorage
    from asyncgen.models.mixers.state_rows import Rows


class SlottedRow(Protocol):
    """A row of a packed step: some tokens of one text.

    Attributes:
        start: Position of the first token that is computed now.
        count: Tokens that are computed now, at least 1.
        source: Slot of the state before the first token; negative: its text begins.
        target: Slot for the state behind the last token, another one.
    """

    @property
    def start(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def target(self) -> int: ...


class PackedStates:
    """The `StateContext` of packed rows.

    For every forward pass: `lay_out` with the rows, then ``DecoderLM.decode_packed``. A text begins
    at position 0; a later row goes on from a slot whose state is behind as many tokens. Several
    rows may go on from one slot, and none writes to it.

    Attributes:
        storage: Storage of the states.
        native: See `StateContext`.
        order: See `StateContext`.
    """

    fused = None
    order = None

    def __init__(self, storage: StateStorage) -> None:
        """Begin with slots that no text has."""
        self.storage = storage
        layers = list(zip(storage.windows, storage.states, strict=True))
        self.native: Any | None = native_states(layers, storage.windows[0].dtype, storage.device)
        self._behind = [-1] * storage.num_slots  # tokens that each slot's state is behind
        self._counts: list[int] = []
        self._sources: list[int] = []
        self._targets: list[int] = []
        self._rows: list[Rows] | None = None
        self._places: dict[int, tuple[Tensor, Tensor]] = {}  # by the identity of `rows`

    @property
    def compiled(self) -> Any | None:
        """See `AttentionContext`: the states as our own kernels see them."""
        return self.native

    def lay_out(self, rows: Sequence[SlottedRow]) -> None:
        """Prepare a forward pass of some rows, at least one.

        Raises:
            RuntimeError: A row's slot has no state of a text that ends before its first token.
        """
        sources, targets, counts = [], [], []
        numbers: list[int] = []
        token = 0
        for row in rows:
            source, target = self._source(row), row.target
            sources.append(source)
            targets.append(target)
            counts.append(row.count)
            numbers += (token, row.count, source, target)
            token += row.count
        for row in rows:
            self._behind[row.target] = row.start + row.count
        self._counts, self._sources, self._targets = counts, sources, targets
        self._rows = None
        if self.native is not None:
            self.native.lay_out(array("q", numbers))

    @property
    def rows(self) -> list[Rows]:
        """See `StateContext`; made when torch asks for them."""
        if self._rows is not None:
            return self._rows
        device = self.storage.device
        self._rows = sort_rows(self._counts, None, device)
        both = host_ints(list(chain(self._sources, self._targets)))
        both = to_device(both, device).view(2, -1)
        self._places.clear()
        for alike in self._rows:
            some = both if alike.numbers is None else both.index_select(1, alike.numbers)
            self._places[id(alike)] = some[0], some[1]
        return self._rows

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`; the step's rows are those that were laid out."""

    def read(self, layer: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """See `StateContext`."""
        sources, _ = self._places[id(rows)]
        storage = self.storage
        return (
            storage.windows[layer].index_select(0, sources),
            storage.states[layer].index_select(0, sources),
        )

    def write(self, layer: int, rows: Rows, window: Tensor, state: Tensor) -> None:
        """See `StateContext`."""
        _, targets = self._places[id(rows)]
        self.storage.windows[layer].index_copy_(0, targets, window)
        self.storage.states[layer].index_copy_(0, targets, state)

    def keep(self, layer: int) -> None:
        """See `StateContext`; they are in their places already."""

    def _source(self, row: SlottedRow) -> int:
        """Return the slot that a row goes on from."""
        if row.start == 0:
            return self.storage.num_slots
        if row.source < 0 or self._behind[row.source] != row.start:
            raise RuntimeError(f"slot {row.source} has no state behind {row.start} tokens")
        return row.source
