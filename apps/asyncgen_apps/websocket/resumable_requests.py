"""Keep the requests of a server while they can be resumed.

After its connection or its own end, a request is kept for a grace period, so that a client that
was cut off gets the rest. Then it is cancelled and forgotten. Knows no socket, no engine and no
clock: callers pass the time.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from asyncgen_apps.serving.clients import ANYBODY
from asyncgen_apps.serving.shared_budget import SharedBudget
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.replay import Piece, Replay
from asyncgen_apps.websocket.resume_tokens import Signer

if TYPE_CHECKING:
    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.websocket.settings import StreamSettings


_TOKEN_BYTES = 18


class Listener(Protocol):
    """Connection that receives an answer, as far as the answer uses it."""

    def mark(self, answer: Answer, /) -> None:
        """Note that the answer has output to send."""

    def put_accepted(self, answer: Answer, queue_position: int | None, /) -> None:
        """Tell the client that the engine accepted the request."""

    def give_up(self, answer: Answer, /) -> None:
        """Release the answer to another connection."""


class Answer:
    """Output of one request, its end, and the connection that receives it.

    Attributes:
        id: Name that the client gave it.
        token: Resume token.
        client: Owner of the request.
        channel: Connection that receives it; ``None`` while there is none.
        with_tokens: True if deltas have token ids.
        is_accepted: True once the engine has accepted it.
        seed: Seed of its random draws; ``None`` until the engine has accepted it.
        replay: Buffer of its output.
        end: Last message without ``id`` and ``seq``; ``None`` while it runs.
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
        """Begin without output; :meth:`Registry.create` does it."""
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
        """Note that the engine accepted the request.

        Args:
            queue_position: Its place in the queue, from 1; ``None`` if it need not wait.
        """
        self.is_accepted = True
        if self.channel is not None:
            self.channel.put_accepted(self, queue_position)

    def add(self, piece: Piece) -> bool:
        """Add output.

        Returns:
            False if too much is unread: the answer has failed, and the engine should stop.
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
        """End the answer after success or a cancel.

        Args:
            done: The ``done`` message without ``id`` and ``seq``.
        """
        self._end({"type": "done", **done})

    def fail(self, fault: Fault) -> None:
        """End the answer with an error."""
        self._end(fault.message_for())

    def last_message(self) -> dict[str, Any]:
        """Return the message that ends it; needs an ``end``."""
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
    """Requests of a server that run or can still be resumed, by resume token.

    Attributes:
        signer: Maker of the tokens that other servers can read.
        num_running: Number of requests that have not ended.
    """

    def __init__(self, settings: StreamSettings) -> None:
        """Begin empty."""
        self._settings = settings
        self.signer = Signer(settings.resume_secret)
        self._answers: dict[str, Answer] = {}
        # Sorted by deadline, because the grace period is the same for all.
        self._leaving: OrderedDict[Answer, float] = OrderedDict()
        # Of each client, oldest first.
        self._ended: dict[str, OrderedDict[Answer, int]] = {}
        self._kept = SharedBudget(settings.kept_bytes, is_shared=settings.has_several_clients)
        self.num_running = 0

    def __len__(self) -> int:
        """Return the number of requests, ended ones included."""
        return len(self._answers)

    @property
    def running(self) -> list[Answer]:
        """Requests that have not ended; a copy."""
        return [answer for answer in self._answers.values() if answer.end is None]

    @property
    def kept_bytes(self) -> int:
        """Approximate number of bytes kept for ended requests."""
        return self._kept.used

    def create(self, channel: Listener, request_id: str) -> Answer:
        """Add a request."""
        answer = Answer(self, channel, request_id, self._settings.replay_bytes)
        self._answers[answer.token] = answer
        self.num_running += 1
        return answer

    def rename(self, answer: Answer, token: str) -> None:
        """Replace the token of a request, before its client learns the first one."""
        if self._answers.pop(answer.token, None) is not None:
            self._answers[token] = answer
        answer.token = token

    def find(self, token: str) -> Answer | None:
        """Find a request by its token, whose random bytes make timing attacks useless."""
        return self._answers.get(token)

    def note_end(self, answer: Answer) -> None:
        """Note the end of an answer; the answer calls this."""
        self.num_running -= 1
        if answer.token not in self._answers:
            return  # it expired or was dropped before
        if not answer.is_accepted:
            self.drop(answer)  # it was refused, and no client has its token
            return
        size, client = answer.replay.size, answer.client.id
        while not self._kept.take(client, size):
            if not self._ended:
                self.drop(answer)  # it alone is more than may be kept
                return
            self.drop(next(iter(self._ended[self._kept.largest()])))
        self._ended.setdefault(client, OrderedDict())[answer] = size

    def leave(self, answer: Answer, now: float) -> None:
        """Begin the grace period of an answer: it has no connection, or everything was sent.

        Args:
            answer: Answer that may expire from now on.
            now: Seconds of a monotonic clock.
        """
        if answer.token in self._answers:
            self._leaving[answer] = now + self._settings.grace_seconds
            self._leaving.move_to_end(answer)

    def stay(self, answer: Answer) -> None:
        """End the grace period of an answer: it has a connection again."""
        self._leaving.pop(answer, None)

    @property
    def next_expiry(self) -> float | None:
        """Time at which the next request expires; ``None`` if none does."""
        return next(iter(self._leaving.values()), None)

    def expire(self, now: float) -> list[Answer]:
        """Forget the requests whose grace period is over.

        Returns:
            Expired requests that still run: the engine should stop them.
        """
        expired = []
        while self._leaving:
            answer, deadline = next(iter(self._leaving.items()))
            if deadline > now:
                break
            self.drop(answer)
            if answer.end is None:
                expired.append(answer)
        return expired

    def drop(self, answer: Answer) -> None:
        """Forget a request at once; it can no longer be resumed."""
        self._answers.pop(answer.token, None)
        self._leaving.pop(answer, None)
        client = answer.client.id
        ended = self._ended.get(client)
        if ended is not None and answer in ended:
            self._kept.give_back(client, ended.pop(answer))
            if not ended:
                del self._ended[client]
