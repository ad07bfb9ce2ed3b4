"""Divide a resource evenly among clients over time, and leave none of it idle.

A resource is shared to a level: whoever wants less has what it wants, all others have the same
(max-min fairness). What cannot be split exactly at every step is evened out by credits: each step
a client that wants more is credited with an even part of what all held and charged with what it
held itself, as in deficit round robin (Shreedhar and Varghese 1995, section 3). So a credit is an
integral over steps, and credits sum up to nothing: what one is owed others had. Who is owed
something should hold more than its share for a while, and who had too much, less. Knows clients by
name; no rows and no pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


PATIENCE = 4
"""Another one has to give something up for a client that has had its share of so many steps less
than that one: in many small steps or, without anything, in fewer than so many."""

_HORIZON = 16
"""In so many steps a client gets back what it is owed: it should hold that part of it, more than
its share. Who is owed its share of as many steps is not passed by others any more."""

_EPSILON = 1e-6


def level(capacity: float, wanted: Iterable[float]) -> float:
    """Find the most that anybody gets, so that all is given out or everybody has what it wants.

    Args:
        capacity: What there is.
        wanted: What each client wants.

    Returns:
        Each has the smaller one of this and of what it wants; infinite if that is enough for all.
    """
    left, others = capacity, sorted(wanted)
    for number, amount in enumerate(others):
        even = left / (len(others) - number)
        if amount > even:
            return even
        left -= amount
    return float("inf")


def split(amount: int, wanted: Mapping[str, int], credits: Credits) -> dict[str, int]:
    """Split what can be had once among those who want it.

    Args:
        amount: What there is.
        wanted: What each client wants.
        credits: What each is owed by the others.

    Returns:
        What each gets: an even part, less what it owes and more of what others owe.
    """
    most = level(amount, wanted.values())
    parts = {client: float(min(want, most)) for client, want in wanted.items()}
    moves = {
        client: max(-part, min(credits.credit(client), wanted[client] - part))
        for client, part in parts.items()
    }
    more = sum(move for move in moves.values() if move > 0)
    less = sum(move for move in moves.values() if move < 0)
    moved = min(more, -less)
    for client, move in moves.items():
        if moved and move:
            parts[client] += moved * move / (more if move > 0 else -less)
    whole = {client: int(part + _EPSILON) for client, part in parts.items()}
    left = amount - sum(whole.values())
    for client in credits.most_owed(wanted):
        if left <= 0:
            break
        if whole[client] < wanted[client]:
            whole[client] += 1
            left -= 1
    return whole


class Credits:
    """Credits of clients for a resource that is held (seats, blocks) or used (prompt tokens).

    Attributes:
        held: What each client holds.
        shares: What each client should hold.
    """

    def __init__(self, most_steps: int = 64) -> None:
        """Nobody is owed anything.

        Args:
            most_steps: Credit is kept for so many steps of a share, on either side.
        """
        self._most_steps = most_steps
        self.held: dict[str, float] = {}
        self._holders: list[str] = []  # those of them that hold anything, few where many wait
        self.shares: dict[str, float] = {}
        self._credits: dict[str, float] = {}
        self._due: dict[str, float] = {}  # what each should hold now, with what it is owed
        self._givers: tuple[float, list[str]] | None = None

    def step(self, capacity: int, held: Mapping[str, int], wanted: Mapping[str, int]) -> None:
        """Credit and charge all clients for a step; forget everything where there is enough.

        Args:
            capacity: What there is.
            held: What each client held in the step.
            wanted: What each client would hold if it could, at least what it holds.
        """
        self._givers = None
        most = level(capacity, wanted.values())
        if most == float("inf"):
            self.held, self.shares, self._credits, self._due, self._holders = {}, {}, {}, {}, []
            return
        total = sum(held.values())
        even = most if total == capacity else level(total, wanted.values())
        limit, hads = self._most_steps * most, [held.get(client, 0) for client in wanted]
        self.shares = {client: min(want, most) for client, want in wanted.items()}
        self._credits = {
            client: max(-limit, min(limit, self.credit(client) + min(want, even) - had))
            for (client, want), had in zip(wanted.items(), hads, strict=True)
        }
        self._due = {client: share + self.extra(client) for client, share in self.shares.items()}

    def credit(self, client: str) -> float:
        """Return a client's credit in steps times units; below 0 for one that had more than its
        share.
        """
        return self._credits.get(client, 0.0)

    def most_owed(self, clients: Iterable[str]) -> list[str]:
        """These clients, the one that is owed most first."""
        return sorted(clients, key=self.credit, reverse=True)

    def hold(self, held: Mapping[str, int]) -> None:
        """Take note of what each client holds now."""
        self.held = {client: float(held.get(client, 0)) for client in self.shares}
        self._holders = [client for client, count in self.held.items() if count]
        self._givers = None

    def extra(self, client: str) -> float:
        """Return the units that a client should hold beyond its share because of its credit;
        below 0 for fewer.
        """
        return self.credit(client) / _HORIZON

    def missing(self, client: str) -> float:
        """Return the units that a client lacks now; below 0 if it holds more than it should."""
        return self._due.get(client, 0.0) - self.held.get(client, 0.0)

    def giver(self, client: str) -> str | None:
        """Find out who has to give something up for a client; ``None`` for nobody, or not yet."""
        missing = self.missing(client)
        if missing <= 0:
            return None
        # Who has most of its share waits longer: what starts anew computes its end again. Of
        # shares below one each has its turn of some steps: one step would be all overhead.
        share = self.shares[client]
        patience = PATIENCE * max(missing, share + min(share, self.held[client]), 1.0)
        most = self.credit(client) - patience
        if self._givers is None:
            self._givers = self._look_up_givers()
        least, givers = self._givers
        if most < least:
            return None
        return next((other for other in givers if self.credit(other) <= most), None)

    def _look_up_givers(self) -> tuple[float, list[str]]:
        """Cache the clients that hold more than they should, most first, and their least credit."""
        due, held = self._due, self.held
        lacks = [(due[each] - held[each], each) for each in self._holders]
        above = [client for lack, client in sorted(lacks) if lack < 0]
        return min(map(self._credits.__getitem__, above), default=float("inf")), above

    def is_long_owed(self, client: str) -> bool:
        """Return whether a client has waited so long for its share that others no longer pass
        it.
        """
        share = self.shares.get(client, 0.0)
        return share > 0 and self.credit(client) >= _HORIZON * share

    def move(self, giver: str, amount: float, client: str | None = None) -> None:
        """Note that a client gave something up, and who gets it if that is certain."""
        self.held[giver] -= amount
        self._givers = None
        if client is not None:
            if not self.held[client]:
                self._holders.append(client)
            self.held[client] += amount
