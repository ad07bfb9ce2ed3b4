"""Contexts of models whose layers partly attend and partly keep states: one of each, together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from torch import Tensor

    from asyncgen.models.attention.dense import AttentionContext
    from asyncgen.models.mixers.packed_states import PackedStates
    from asyncgen.models.mixers.state_rows import Rows


class Hybrid:
    """Attention and states in one context.

    Attributes:
        attend: See `AttentionContext`.
        read: See `StateContext`.
        write: See `StateContext`.
        keep: See `StateContext`.
    """

    fused = None

    def __init__(self, attention: AttentionContext, states: Any) -> None:
        """Join both.

        Args:
            attention: Context of layers that attend.
            states: Context of the others; also begins passes.
        """
        self._attention, self._states = attention, states
        # Bind the methods here: a step calls them once a layer.
        self.attend: Callable[..., Tensor] = attention.attend
        self.read: Callable[[int, Rows], tuple[Tensor, Tensor]] = states.read
        self.write: Callable[[int, Rows, Tensor, Tensor], None] = states.write
        self.keep: Callable[[int], None] = states.keep

    @property
    def rows(self) -> Sequence[Rows]:
        """See `StateContext`."""
        found: Sequence[Rows] = self._states.rows
        return found

    @property
    def compiled(self) -> tuple[Any, Any] | None:
        """See `AttentionContext`: pages and states, if our kernels compute with both."""
        pages, states = self._attention.compiled, self._states.compiled
        return None if pages is None or states is None else (pages, states)

    @property
    def native(self) -> Any | None:
        """See `StateContext`."""
        return self._states.native

    @property
    def order(self) -> Tensor | None:
        """See `StateContext`."""
        found: Tensor | None = self._states.order
        return found

    def begin(self, rows: int, length: int) -> None:
        """See `AttentionContext`."""
        self._attention.begin(rows, length)
        self._states.begin(rows, length)


class PackedHybrid(Hybrid):
    """Context of packed rows.

    Attributes:
        storage: Keys and values.
    """

    def __init__(self, attention: Any, states: PackedStates) -> None:
        """Join both; see `PagedAttention` and `PackedStates`."""
        super().__init__(attention, states)
        self.storage = attention.storage
        self._packed = attention, states

    def lay_out(self, rows: Sequence[Any]) -> None:
        """Prepare a forward pass of some rows, see both."""
        for each in self._packed:
            each.lay_out(rows)
