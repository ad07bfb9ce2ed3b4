"""Choose the replica of a request: the one with its prefix cached, or the least loaded.

A replica that holds a page or more of a prompt saves that work. It may have more than its share of
requests: at most `BOUND` times the mean, plus one (Mirrokni, Thorup and Zadimoghaddam, "Consistent
hashing with bounded loads", 2018, section 1). If no replica is known to hold it, the loads decide.
Among almost equal loads, a hash of the beginning and the replica's name decides (rendezvous
hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998), so that
all ingresses choose alike without talking to each other.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen import Prompt

BOUND = 1.25

SLACK = 1
"""Requests by which two loads may differ and still count as equal."""

PAGE = 16
"""Tokens of a page; a shorter prompt leaves no cached page."""

CHARACTERS = 4
"""Approximate characters of a token."""

MOST_KNOWN = 10_000
"""Most beginnings that are remembered."""

UNSENT_SECONDS = 1.0
"""Age at which a placed request that was not sent counts as abandoned."""


def fills_a_page(prompt: Prompt) -> bool:
    """Tell whether a prompt has about a page of tokens."""
    if isinstance(prompt, str):
        return len(prompt) >= PAGE * CHARACTERS
    length = 0
    for each in prompt:
        content = 1 if isinstance(each, int) else each.get("content")
        length += len(content) if isinstance(content, str) else CHARACTERS
        if length >= PAGE * CHARACTERS:
            return True
    return False


def ranked(session: str, loads: Mapping[str, int], holder: str = "") -> list[str]:
    """Order replicas for a request.

    Args:
        session: Digest of its beginning; empty if the cache cannot help.
        loads: Number of requests of each replica.
        holder: Replica that holds the beginning; empty if none is known.

    Returns:
        All names: the holder, unless it has too many requests; then those with at most `SLACK` more
        than the least loaded, in the order of the hash; then the others by load. Without a
        beginning, all by load.
    """
    slack = SLACK if session else 0
    least = min(loads.values(), default=0)
    most = BOUND * (sum(loads.values()) + 1) / max(len(loads), 1) + 1

    def place(name: str) -> tuple[bool, int, int]:
        is_holder = name == holder and loads[name] + 1 <= most
        return not is_holder, max(loads[name] - slack, least), -_mark(session, name)

    return sorted(loads, key=place)


class RequestPlacer:
    """Chooses replicas for the requests of one handle, one after another."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Begin without placed requests.

        Args:
            clock: Returns monotonic seconds.
        """
        self._clock = clock
        self._unsent: dict[int, tuple[str, float]] = {}
        self._holders: OrderedDict[str, str] = OrderedDict()

    def place(
        self, request: int, session: str, loads: Mapping[str, int | None], *, is_long: bool
    ) -> list[str]:
        """Order replicas for a request, and count it in the load of the first one.

        The loads of Serve have only requests that were sent, and many are placed before that.

        Args:
            request: Id of the request; placing it again replaces its first place.
            session: Digest of its beginning; empty if there is none.
            loads: Number of requests of each replica by its own count; ``None`` if a replica does
                not answer: it comes last.
            is_long: True if the prompt has a page of tokens that a replica could hold.

        Returns:
            All names, in the order of `ranked`.
        """
        self._unsent.pop(request, None)
        now = self._clock()
        old = [key for key, (_, at) in self._unsent.items() if now - at > UNSENT_SECONDS]
        for key in old:
            del self._unsent[key]
        known = {name: load for name, load in loads.items() if load is not None}
        silent = [name for name in loads if name not in known]
        known = known or dict.fromkeys(silent, 0)
        for name, _ in self._unsent.values():
            if name in known:
                known[name] += 1
        holder = self._holders.get(session, "")
        names = ranked(session, known, holder) if is_long else ranked("", known)
        if names:
            self._unsent[request] = names[0], now
            self._remember(session, names[0])
        return [*names, *(name for name in silent if name not in known)]

    def sent(self, name: str) -> None:
        """Note that a request was sent to a replica, whose own count has it now."""
        for request, (placed, _) in self._unsent.items():
            if placed == name:
                del self._unsent[request]
                return

    def _remember(self, session: str, name: str) -> None:
        if not session:
            return
        self._holders[session] = name
        self._holders.move_to_end(session)
        if len(self._holders) > MOST_KNOWN:
            self._holders.popitem(last=False)


def _mark(session: str, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{session}/{name}".encode()).digest()[:8], "big")
