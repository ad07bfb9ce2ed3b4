"""Choose the replica of a request: the one with its prefix cached, or the least loaded.

A replica that is known to hold a page or more of a prompt saves its work, and may have somewhat
more than its share for that: at most `BOUND` times the mean, and one more (Mirrokni, Thorup and
Zadimoghaddam, "Consistent hashing with bounded loads", 2018, section 1). Where none is known to,
the loads decide, and between loads that are equal or almost so a hash of the beginning and the
replicas' names (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998:
rendezvous hashing), so that ingresses which know nothing of each other choose alike.
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
"""Requests more than the emptiest that a replica may have, and still be as good as it."""

PAGE = 16
"""Tokens; shorter, a prompt leaves nothing behind that another one could use."""

CHARACTERS = 4
"""Of a token, about."""

MOST_KNOWN = 10_000
"""Beginnings that are remembered."""

UNSENT_SECONDS = 1.0
"""What was placed longer ago, and not sent, was given up."""


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
        session: How it begins; empty: nothing is gained where others have begun so.
        loads: Requests of each replica.
        holder: The one that is known to hold the beginning; empty: none is.

    Returns:
        All names: the holder, if it is not too full; then those that have at most `SLACK` more than
        the emptiest, as the hash has them; then the others, the emptiest first. Without a
        beginning all, the emptiest first.
    """
    slack = SLACK if session else 0
    least = min(loads.values(), default=0)
    most = BOUND * (sum(loads.values()) + 1) / max(len(loads), 1) + 1

    def place(name: str) -> tuple[bool, int, int]:
        is_holder = name == holder and loads[name] + 1 <= most
        return not is_holder, max(loads[name] - slack, least), -_mark(session, name)

    return sorted(loads, key=place)


class Placing:
    """Places the requests of one handle, one after the other."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """Nothing was placed yet.

        Args:
            clock: Tells seconds.
        """
        self._clock = clock
        self._unsent: dict[int, tuple[str, float]] = {}
        self._holders: OrderedDict[str, str] = OrderedDict()

    def place(
        self, request: int, session: str, loads: Mapping[str, int | None], *, is_long: bool
    ) -> list[str]:
        """Order replicas for a request, and count it as one of the first's from now on.

        Many are placed before the first of them is sent, and only what was sent is in the loads.

        Args:
            request: Which it is; one that is placed once more counts where it is placed last.
            session: How it begins; empty: it is like no other.
            loads: Requests of each replica, as its own count tells; ``None`` is one that says
                nothing, and may be anything but empty: it comes last.
            is_long: Whether it has a page of tokens that a replica could hold.

        Returns:
            All names, as `ranked` has them.
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
        """A request was sent to a replica, and counts among its own."""
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
