"""A reader of events that keeps what it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgen.types import TokenEvent

__all__ = ["RecordingSink"]


class RecordingSink:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.items: list[TokenEvent | BaseException] = []

    def put_nowait(self, item: TokenEvent | BaseException, /) -> None:
        """Keep it."""
        self.items.append(item)

    @property
    def events(self) -> list[TokenEvent]:
        """The events; fails if there is an exception."""
        assert not any(isinstance(item, BaseException) for item in self.items), self.items
        return [item for item in self.items if not isinstance(item, BaseException)]

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(event.text for event in self.events)
