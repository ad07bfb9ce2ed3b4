"""Split an answer, as it grows, into the regions that a response template declares."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from asyncgen.text.response_template.patterns import Match, Search
    from asyncgen.text.response_template.template import Field, ResponseTemplate


_LONG = 4096
"""Least characters that are dropped at once."""


class Step(Enum):
    """Change of a region."""

    OPEN = auto()
    CHUNK = auto()
    CLOSE = auto()


class Change(NamedTuple):
    """One change of the regions.

    Attributes:
        step: What happens.
        field: Field of the region; ``None`` for text that belongs to none.
        text: New text of the region, or the delimiter that opens or closes it.
        captures: Named groups of both delimiters, where a region closes.
    """

    step: Step
    field: Field | None
    text: str
    captures: Mapping[str, str] = {}


class RegionSplitter:
    """Splitter of one answer.

    Attributes:
        current: Field of the region where the text goes on; ``None``: text of no field.
    """

    def __init__(self, template: ResponseTemplate) -> None:
        """Begin in front of the message."""
        self._template = template
        self.current = template.implicit
        self._is_open = False
        self._captures: Mapping[str, str] = {}
        self._text, self._base, self._place = "", 0, 0
        self._searches: dict[tuple[str, bool], Search] = {}

    def put(self, text: str) -> Iterator[Change]:
        """Take more text; yield the changes that are certain by now."""
        self._text += text
        yield from self._changes(is_complete=False)

    def finish(self) -> Iterator[Change]:
        """Yield the last changes: the answer is complete, and so are all regions."""
        yield from self._changes(is_complete=True)
        yield from self._close("", {})

    def _changes(self, *, is_complete: bool) -> Iterator[Change]:
        while True:
            found, held = self._next(is_complete=is_complete)
            yield from self._chunk(held if found is None else found[2].start)
            if found is None:
                break
            field, is_opening, match = found
            had_text = self._is_open
            delimiter = self._cut(match.end)
            if is_opening:
                yield from self._close("", {})
                self.current, self._is_open, self._captures = field, True, match.groups
                yield Change(Step.OPEN, field, delimiter)
            else:
                yield from self._close(delimiter, match.groups)
                if not had_text and match.start == match.end:
                    yield from self._chunk(self._base + len(self._text) if is_complete else held)
                    break
        self._trim()

    def _next(self, *, is_complete: bool) -> tuple[tuple[Field, bool, Match] | None, int]:
        """Find the next delimiter.

        Returns:
            The delimiter, the earliest one and of several the longest; ``None`` where more text
            decides. And the place up to which the text is that of the region in any case.
        """
        found: list[tuple[int, int, int, str, Field, bool, Match]] = []
        held = self._base + len(self._text)
        for field, is_opening in self._watched():
            search = self._search(field, is_opening=is_opening)
            search.run(self._text, self._base, is_complete=is_complete)
            match = search.found
            if match is not None:
                key = match.start, match.start - match.end, not is_opening, field.name
                found.append((*key, field, is_opening, match))
            elif search.pending is not None:
                held = min(held, search.pending)
        if not found:
            return None, held
        best = min(found, key=lambda each: each[:4])
        if best[0] >= held and not is_complete:
            return None, held
        return best[4:], held

    def _watched(self) -> list[tuple[Field, bool]]:
        """List the delimiters that count here, and whether each opens its region."""
        fields, implicit = self._template.fields.values(), self._template.implicit
        if self.current is not None and self.current is not implicit:
            return [] if self.current.close is None else [(self.current, False)]
        watched = [(field, True) for field in fields if field.open is not None]
        if implicit is not None and implicit.close is not None:
            watched.append((implicit, False))
        return watched

    def _search(self, field: Field, *, is_opening: bool) -> Search:
        """Return the search for a delimiter, from the place on where the region goes on.

        What one has read stays read: the first match from an earlier place is the first from here,
        unless it begins before.
        """
        key = field.name, is_opening
        search = self._searches.get(key)
        if search is None:
            delimiter = field.open if is_opening else field.close
            assert delimiter is not None
            search = self._searches[key] = delimiter.search()
            search.restart(self._place)
        start = search.found.start if search.found is not None else search.pending
        if (start is not None and start < self._place) or search.place < self._place:
            search.restart(self._place)
        return search

    def _chunk(self, end: int) -> Iterator[Change]:
        """Pass the text up to a place on to the region."""
        text = self._cut(end)
        if not text:
            return
        if not self._is_open and self.current is not None:
            yield Change(Step.OPEN, self.current, "")
            self._is_open = True
        yield Change(Step.CHUNK, self.current, text)

    def _close(self, delimiter: str, groups: Mapping[str, str]) -> Iterator[Change]:
        field, captures = self.current, {**self._captures, **groups}
        was_open = self._is_open and field is not None
        self.current, self._is_open, self._captures = self._template.implicit, False, {}
        if was_open or delimiter:
            yield Change(Step.CLOSE, field if was_open else None, delimiter, captures)

    def _cut(self, end: int) -> str:
        text = self._text[self._place - self._base : end - self._base]
        self._place = max(end, self._place)
        return text

    def _trim(self) -> None:
        """Drop the text that was passed on."""
        kept = self._place - 1  # an expression may look at the character before
        if kept - self._base > _LONG:
            self._text, self._base = self._text[kept - self._base :], kept
