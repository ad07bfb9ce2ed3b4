"""Count what clients hold of a budget, and leave room in it for the next one.

The one place that decides how much of a server's places, or of its memory, a client may have. Knows
names and numbers; not what is counted.
"""

from __future__ import annotations

from collections import Counter

MOST_TIMES = 7
"""A client holds at most so many times what it leaves free."""


class SharedBudget:
    """Budget of which a client holds at most `MOST_TIMES` what it leaves free.

    These are dynamic thresholds (Choudhury and Hahne, 1998), by which the ports of a switch share a
    buffer: a client alone has seven eighths, the next one finds an eighth and may have seven
    eighths of that, and who holds more gets nothing until that fits again. Who holds nothing may
    have what is left, so that each budget has at least one client.

    Attributes:
        most: What all clients hold together at most.
        used: What they hold.
    """

    def __init__(self, most: int, *, is_shared: bool = True, owner: str | None = None) -> None:
        """Begin with all of it free.

        Args:
            most: What all clients hold together at most.
            is_shared: False where there can be one client only, which then may have everything.
            owner: A client that may have everything beside others: the one with a key.
        """
        self.most = most
        self.used = 0
        self._is_shared = is_shared
        self._owner = owner
        self._held: Counter[str] = Counter()

    def held_by(self, client: str) -> int:
        """Return what a client holds."""
        return self._held[client]

    def take(self, client: str, amount: int = 1) -> bool:
        """Give a client some of it, unless that is too much for it; return whether it got it.

        Args:
            client: Name of the client.
            amount: How much, above 0.
        """
        held, free = self._held[client], self.most - self.used - amount
        is_above = held > 0 and held + amount > MOST_TIMES * free
        if free < 0 or is_above and self._limits(client):
            return False
        self._held[client] = held + amount
        self.used += amount
        return True

    def _limits(self, client: str) -> bool:
        return self._is_shared and client != self._owner

    def give_back(self, client: str, amount: int = 1) -> None:
        """Take back what a client got."""
        self.used -= amount
        self._held[client] -= amount
        if not self._held[client]:
            del self._held[client]

    def largest(self) -> str:
        """Return the client that holds most; there must be one."""
        return max(self._held, key=self._held.__getitem__)

    def refusal(self, client: str, what: str, unit: int = 1) -> str:
        """Say why a client got nothing more.

        Args:
            client: Name of the client.
            what: What is counted, and what happens to it.
            unit: By which the numbers are divided.
        """
        used, most, held = (each // unit for each in (self.used, self.most, self._held[client]))
        said = f"{used} of at most {most} {what}"
        if self._held[client] and self._limits(client):
            said += (
                f", {held} of them yours: one client has at most {MOST_TIMES} times as many as it "
                "leaves to others"
            )
        return said
