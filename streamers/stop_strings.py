"""End a streamed text at a stop string, and hold back text that may begin one.

Works on characters alone and knows nothing of tokens. The search is the automaton of Aho and
Corasick, "Efficient string matching: an aid to bibliographic search" (1975), section 2: its depth
after each character is the length of the longest ending that could still become a stop string, so
that much is held back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Automaton:
    """Trie of the stop strings with failure links; node 0 is the root."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.edges: list[dict[str, int]] = [{}]
        self.depth = [0]
        self.found: list[str | None] = [None]
        for stop in stops:
            self._add(stop)
        self.fail = [0] * len(self.edges)
        self._link()
        starts = "".join(re.escape(first) for first in self.edges[0])
        self.next_start = re.compile(f"[{starts}]").search if starts else None

    def _add(self, stop: str) -> None:
        node = 0
        for char in stop:
            child = self.edges[node].get(char)
            if child is None:
                child = len(self.edges)
                self.edges[node][char] = child
                self.edges.append({})
                self.depth.append(self.depth[node] + 1)
                self.found.append(None)
            node = child
        self.found[node] = stop

    def _link(self) -> None:
        queue = list(self.edges[0].values())
        for node in queue:  # grows while it is walked: breadth first
            for char, child in self.edges[node].items():
                queue.append(child)
                self.fail[child] = self.step(self.fail[node], char)
            # The node's own stop string is longer than any that its failure link ends.
            if self.found[node] is None:
                self.found[node] = self.found[self.fail[node]]

    def step(self, node: int, char: str) -> int:
        """Follow one character; the cost is constant, averaged over a text."""
        edges = self.edges
        while node and char not in edges[node]:
            node = self.fail[node]
        return edges[node].get(char, 0)


class StopStrings:
    """Filter that passes text up to the first stop string, and holds back its possible beginning.

    The stop string that is completed first ends the text; of several that end at the same
    character, the longest. So the result does not depend on the pieces in which the text came, and
    no further text is ever needed to decide. Cost is linear in the text, whatever the number and
    length of the stop strings. `copy.copy` gives an independent filter at the same place.

    Attributes:
        held: Text that is held back because it may begin a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Args:
        stops: The stop strings, none of them empty; without stop strings all text passes.

        Raises:
            ValueError: A stop string is empty, or `stops` is itself a string.
        """
        if isinstance(stops, str) or not all(isinstance(s, str) and s for s in stops):
            raise ValueError(
                f"stops={stops!r} must be a sequence of non-empty strings; "
                "wrap a single stop string in a list"
            )
        self._automaton = _Automaton(stops)
        self._node = 0
        self.held = ""
        self._match: str | None = None

    def put(self, text: str) -> tuple[str, str | None]:
        """Take more text.

        Returns:
            The text that may be shown now, and the stop string that was found, else None. Text
            from a match on, and everything put after it, is dropped.
        """
        if self._match is not None:
            return "", self._match
        automaton = self._automaton
        if automaton.next_start is None:
            return text, None
        node, at, end = self._node, 0, len(text)
        while at < end:
            if not node:
                start = automaton.next_start(text, at)
                if start is None:
                    break
                at = start.start()
            node = automaton.step(node, text[at])
            at += 1
            stop = automaton.found[node]
            if stop is not None:
                shown = (self.held + text[:at])[: -len(stop)]
                self._node, self.held, self._match = 0, "", stop
                return shown, stop
        return self._release(text, node), None

    def flush(self) -> str:
        """Return the text that is held back: the text ends here without a stop string."""
        held, self.held, self._node = self.held, "", 0
        return held

    def _release(self, text: str, node: int) -> str:
        if not node and not self.held:
            return text
        whole = self.held + text
        keep = len(whole) - self._automaton.depth[node]
        self._node, self.held = node, whole[keep:]
        return whole[:keep]
