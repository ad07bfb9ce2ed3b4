"""Keep the requests of a server while they can be resumed, with a connection or without.

A request outlives its connection, and its own end, for a grace period, so that a client that was
cut off gets the rest; then it is cancelled and forgotten. Knows no socket, no engine and no clock:
times are handed in.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from asyncgen_apps.serving.clients import ANYBODY
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.replay import Piece, Replay
from asyncgen_apps.websocket.resume_tokens import Signer

if TYPE_CHECKING:
    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.websocket.settings import StreamSettings


_TOKEN_BYTES = 18


class Listener(Protocol):
    """The connection that an answer goes to, as far as the answer knows it."""

    def mark(self, answer: Answer, /) -> None:
        """It has something to say."""

    def put_accepted(self, answer: Answer, queue_position: int | None, /) -> None:
        """It was taken by the engine, or taken up again."""

    def give_up(self, answer: Answer, /) -> None:
        """Another connection has taken it over."""


class Answer:
    """One request: what it has said, whether it has ended, and who hears it.

    Attributes:
        id: The client's name for it.
        token: What resumes it.
        client: Whom it belongs to.
        channel: The connection that holds it; ``None`` while there is none.
        with_tokens: Whether deltas have token ids.
        is_accepted: Whether the engine has taken it.
        seed: Of its draws; ``None`` until the engine has taken it.
        replay: What it has said.
        end: The last message but for ``id`` and ``seq``; ``None`` while it runs.
    """

    __slots__ = (
        "channel",
        "client",
        "end",
        "id",
        "is_accepted",
        "registry",
        "replay",
        "seed",
        "token",
        "with_tokens",
    )

    def __init__(self, registry: Registry, channel: Listener, request_id: str, limit: int) -> None:
        """Start one; :meth:`Registry.create` does it."""
        self.registry = registry
        self.id = request_id
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self.client: Client = ANYBODY
        self.channel: Listener | None = channel
        self.with_tokens = False
        self.seed: int | None = None
        self.replay = Replay(limit)
        self.end: dict[str, Any] | None = None
        self.is_accepted = False

    def accepted(self, queue_position: int | None) -> None:
        """The engine has taken it.

        Args:
            queue_position: How many wait, this one included; ``None`` if it need not.
        """
        self.is_accepted = True
        if self.channel is not None:
            self.channel.put_accepted(self, queue_position)

    def add(self, piece: Piece) -> bool:
        """It says something.

        Returns:
            ``False`` if too much of it is unread: it has failed, and the engine should stop.
        """
        if self.end is not None:
            return False
        self.replay.add(piece)
        if self.replay.overflows:
            message = f"{self.replay.size} bytes of it are unread, more than this server keeps"
            self.fail(Fault("slow_reader", message))
            return False
        if self.channel is not None:
            self.channel.mark(self)
        return True

    def finish(self, done: dict[str, Any]) -> None:
        """It has ended well, or was cancelled.

        Args:
            done: The ``done`` but for ``id`` and ``seq``.
        """
        self._end({"type": "done", **done})

    def fail(self, fault: Fault) -> None:
        """It has ended badly."""
        self._end(fault.message_for())

    def last_message(self) -> dict[str, Any]:
        """The message that ends it; needs an ``end``."""
        assert self.end is not None
        message = {**self.end, "id": self.id}
        if message["type"] == "done":
            message["seq"] = self.replay.last_seq + 1
        return message

    def _end(self, end: dict[str, Any]) -> None:
        if self.end is not None:
            return
        self.end = end
        if self.channel is not None:
            self.channel.mark(self)
        self.registry.note_end(self)


class Registry:
    """All requests that run, or can still be resumed, by their tokens.

    Attributes:
        signer: Makes the tokens that other servers can read.
        num_running: Requests that have not ended.
    """

    def __init__(self, settings: StreamSettings) -> None:
        """Start empty."""
        self._settings = settings
        self.signer = Signer(settings.resume_secret)
        self._answers: dict[str, Answer] = {}
        # In the order in which they go, since the time of grace is the same for all.
        self._leaving: OrderedDict[Answer, float] = OrderedDict()
        self._ended: OrderedDict[Answer, int] = OrderedDict()
        self._kept = 0
        self.num_running = 0

    def __len__(self) -> int:
        """Count the requests, ended ones included."""
        return len(self._answers)

    @property
    def running(self) -> list[Answer]:
        """Those that have not ended; a copy."""
        return [answer for answer in self._answers.values() if answer.end is None]

    @property
    def kept_bytes(self) -> int:
        """Bytes kept of requests that have ended, about."""
        return self._kept

    def create(self, channel: Listener, request_id: str) -> Answer:
        """Begin a request."""
        answer = Answer(self, channel, request_id, self._settings.replay_bytes)
        self._answers[answer.token] = answer
        self.num_running += 1
        return answer

    def rename(self, answer: Answer, token: str) -> None:
        """Give a request its token, before anybody hears of it."""
        if self._answers.pop(answer.token, None) is not None:
            self._answers[token] = answer
        answer.token = token

    def find(self, token: str) -> Answer | None:
        """Look one up. (A token has random bytes: the time of a look-up tells nothing.)"""
        return self._answers.get(token)

    def note_end(self, answer: Answer) -> None:
        """An answer has ended; called by it."""
        self.num_running -= 1
        if answer.token not in self._answers:
            return  # it has expired or was dropped
        if not answer.is_accepted:
            self._forget(answer)  # it was refused, so that no client has its token
            return
        size = answer.replay.size
        self._ended[answer] = size
        self._kept += size
        while self._kept > self._settings.kept_bytes:
            self._forget(next(iter(self._ended)))

    def leave(self, answer: Answer, now: float) -> None:
        """Its time of grace begins: nobody listens, or all was said.

        Args:
            answer: From here on it may expire.
            now: Seconds of any clock that goes on evenly.
        """
        if answer.token in self._answers:
            self._leaving[answer] = now + self._settings.grace_seconds
            self._leaving.move_to_end(answer)

    def stay(self, answer: Answer) -> None:
        """Somebody listens again."""
        self._leaving.pop(answer, None)

    @property
    def next_expiry(self) -> float | None:
        """Time at which the next request expires; ``None`` if none does."""
        return next(iter(self._leaving.values()), None)

    def expire(self, now: float) -> list[Answer]:
        """Forget those whose time is over.

        Returns:
            Those that still run: the engine should stop them.
        """
        expired = []
        while self._leaving:
            answer, deadline = next(iter(self._leaving.items()))
            if deadline > now:
                break
            self._forget(answer)
            if answer.end is None:
                expired.append(answer)
        return expired

    def drop(self, answer: Answer) -> None:
        """Forget one at once; it can no longer be resumed."""
        self._forget(answer)

    def _forget(self, answer: Answer) -> None:
        self._answers.pop(answer.token, None)
        self._leaving.pop(answer, None)
        self._kept -= self._ended.pop(answer, 0)
