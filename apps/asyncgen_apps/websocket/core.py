"""The protocol, without a socket, a loop or a clock: one :class:`Channel` a connection.

What a client sent goes in through :meth:`Channel.receive`, what the engine says through an
:class:`~asyncgen_apps.websocket.resumable_requests.Answer`; out come orders (start this, cancel
that, close) and, from :meth:`Channel.flush`, the messages to send. Whoever moves the bytes calls
``flush`` when ``on_ready`` says so and the socket takes more; until then, messages are merged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from asyncgen_apps.serving.clients import ANYBODY
from asyncgen_apps.websocket.errors import RESTART_SECONDS, Fault
from asyncgen_apps.websocket.messages import Auth, Cancel, CloseCode, Generate, Hello, Ping, Resume
from asyncgen_apps.websocket.params import check_params, check_priority
from asyncgen_apps.websocket.takeover import NOBODY_KNOWS, read_behind

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen import ToolCallDelta
    from asyncgen_apps.serving.clients import Client
    from asyncgen_apps.websocket.messages import ClientMessage, Wanted
    from asyncgen_apps.websocket.replay import Piece
    from asyncgen_apps.websocket.resumable_requests import Answer, Registry
    from asyncgen_apps.websocket.settings import StreamSettings
    from asyncgen_apps.websocket.takeover import Behind


_REMEMBERED = 256
"""Ids that have ended lately: to cancel one of them is no mistake."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a request.

    Attributes:
        answer: Where it goes.
        request: What the client wants.
        behind: Where it goes on, if another server has begun it.
        replaced: What is still here of it, and was not kept as a whole; it ends as soon as this
            was found to be the same request.
        is_large: Whether it came in a large message.
    """

    answer: Answer
    request: Wanted
    behind: Behind | None = None
    replaced: Answer | None = None
    is_large: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Have the engine stop a request; its end is said by the engine."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Close:
    """Send what there is, and close the connection."""

    code: CloseCode
    reason: str


Order = Begin | Stop | Close


def _nobody() -> None:
    """The callback of a channel before anybody has set one."""


class Channel:
    """The protocol's side of one connection.

    Attributes:
        client: Whom the connection belongs to; ``None`` until it was let in.
        is_draining: Whether new requests are refused because the server leaves.
        on_ready: Called when there is something to flush; it must be quick.
    """

    __slots__ = (
        "_answers",
        "_find",
        "_fingerprint",
        "_marked",
        "_outbox",
        "_recent",
        "_registry",
        "_settings",
        "client",
        "is_draining",
        "on_ready",
    )

    def __init__(
        self,
        settings: StreamSettings,
        registry: Registry,
        *,
        find: Callable[[str], Client | None] | None = None,
        client: Client | None = ANYBODY,
        fingerprint: str | None = None,
    ) -> None:
        """Open it; ``hello`` waits to be flushed as soon as the client is let in.

        Args:
            settings: Limits.
            registry: The requests of the server.
            find: Whose a token is; ``None`` where none is needed.
            client: Whom the handshake has shown it to belong to; ``None`` if it shows a token yet.
            fingerprint: Of the engine.
        """
        self._settings = settings
        self._fingerprint = fingerprint
        self._registry = registry
        self._find = find
        self._outbox: list[dict[str, Any]] = []
        self._answers: dict[str, Answer] = {}
        self._marked: dict[Answer, list[Piece] | None] = {}
        self._recent: deque[str] = deque(maxlen=_REMEMBERED)
        self.client = client
        self.is_draining = False
        self.on_ready: Callable[[], None] = _nobody
        if client is not None:
            self._hello()

    @property
    def is_authenticated(self) -> bool:
        """True if the client is authenticated."""
        return self.client is not None

    @property
    def num_requests(self) -> int:
        """Requests whose end was not sent yet."""
        return len(self._answers)

    @property
    def backlog(self) -> int:
        """Messages that wait to be sent and do not merge; a reader should pause on too many."""
        return len(self._outbox)

    def receive(
        self, message: ClientMessage | Fault, now: float, *, is_checked: bool = False
    ) -> list[Order]:
        """Take in what the client sent.

        Args:
            message: The message, or what is wrong with it.
            now: Seconds of the registry's clock.
            is_checked: Whether the values of its parameters were looked at.

        Returns:
            What to do, in this order.
        """
        if self.client is None:
            return self._authenticate(message)
        match message:
            case Fault():
                # An id that is in use stays out: the error would read as that request's end.
                free = message.id is not None and message.id not in self._answers
                self._put(message.message_for(message.id if free else None))
            case Ping():
                self._put({"type": "pong", "nonce": message.nonce})
            case Generate():
                return self._begin(message, self.client, is_checked)
            case Cancel():
                return self._cancel(message)
            case Resume():
                return self._resume(message, self.client, is_checked)
            case Auth() if self._find is not None and self._find(message.token) is None:
                self._put(Fault("unauthorized", "this token is not valid").message_for())
            case Auth():
                pass  # the client need not know whether its header was read
        return []

    def refuse(self, fault: Fault, code: CloseCode) -> list[Order]:
        """Say why, and close."""
        self._outbox.clear()
        self._put(fault.message_for())
        return [Close(code, fault.code)]

    def mark(self, answer: Answer) -> None:
        """An answer has something to say."""
        if answer not in self._marked:
            self._marked[answer] = None
            self.on_ready()

    def put_accepted(self, answer: Answer, queue_position: int | None) -> None:
        """An answer was taken by the engine, or taken up again."""
        accepted: dict[str, Any] = {
            "type": "accepted",
            "id": answer.id,
            "resume_token": answer.token,
            "queue_position": queue_position,
        }
        if answer.seed is not None:
            accepted["seed"] = answer.seed
        self._put(accepted)

    def flush(self, now: float) -> list[dict[str, Any]]:
        """Take all there is to send, in order; it counts as sent.

        Args:
            now: Seconds of the registry's clock.
        """
        messages, self._outbox = self._outbox, []
        marked, self._marked = self._marked, {}
        for answer, again in marked.items():
            pieces = [*(again or ()), *answer.replay.take()]
            messages += [_delta(answer, piece) for piece in pieces]
            if answer.end is not None:
                messages.append(answer.last_message())
                self._release(answer)
                self._recent.append(answer.id)
                self._registry.leave(answer, now)
        return messages

    def leave(self, now: float, *, for_good: bool) -> list[Order]:
        """The connection is gone.

        Args:
            now: Seconds of the registry's clock.
            for_good: The client has said that it is finished: its requests end. Otherwise they go
                on, for their time of grace; not while the server drains, as nobody could come back.
        """
        orders: list[Order] = []
        for answer in tuple(self._answers.values()):
            self._release(answer)
            # One that was not accepted yet cannot be resumed either: nobody knows its token.
            if for_good or self.is_draining or not answer.is_accepted:
                self._registry.drop(answer)
                if answer.end is None:
                    orders.append(Stop(answer))
            else:
                self._registry.leave(answer, now)
        self._outbox.clear()
        self._marked.clear()
        return orders

    def _hello(self) -> None:
        settings = self._settings
        hello = Hello(
            model=settings.model_name,
            limits=settings.limits,
            heartbeat_seconds=settings.heartbeat_seconds,
            authenticated=self._find is not None,
            fingerprint=self._fingerprint,
            takes_over=bool(settings.resume_secret),
        )
        self._put(hello.model_dump())

    def _authenticate(self, message: ClientMessage | Fault) -> list[Order]:
        """Nothing but a good token gets a client in, and it has one attempt."""
        if not isinstance(message, Auth):
            fault = Fault("not_authenticated", "the first message must be `auth` with a token")
            return self.refuse(fault, CloseCode.POLICY)
        client = ANYBODY if self._find is None else self._find(message.token)
        if client is None:
            return self.refuse(Fault("unauthorized", "this token is not valid"), CloseCode.POLICY)
        self.client = client
        self._hello()
        return []

    def _begin(self, message: Generate, client: Client, is_checked: bool) -> list[Order]:
        return self._start(message.id, message, client, is_checked)

    def _start(
        self,
        request_id: str,
        wanted: Wanted,
        client: Client,
        is_checked: bool,
        behind: Behind | Fault | None = None,
        last_seq: int = 0,
        replaced: Answer | None = None,
    ) -> list[Order]:
        """Begin a request, or say why not."""
        allow_priority = self._settings.allow_priority or client.may_prioritise
        fault = self._refusal(request_id) or check_priority(
            wanted.params, allow_priority=allow_priority
        )
        if fault is None and not is_checked:
            fault = check_params(wanted.params)
        if fault is None and isinstance(behind, Fault):
            fault = behind
        if fault is not None or isinstance(behind, Fault):
            assert fault is not None
            self._put(fault.message_for(request_id))
            return []
        answer = self._registry.create(self, request_id)
        answer.client = client
        answer.with_tokens = wanted.events == "tokens"
        answer.replay.last_seq = last_seq
        self._answers[request_id] = answer
        return [Begin(answer, wanted, behind, replaced, is_checked)]

    def _refusal(self, request_id: str) -> Fault | None:
        """Return the error for a request of this name that cannot be accepted."""
        if request_id in self._answers:
            return Fault("duplicate_id", "a request of this id has not ended")
        if self.is_draining:
            message = "the server is about to leave; try another, or later"
            return Fault("draining", message, retry_after=RESTART_SECONDS)
        most = self._settings.max_requests
        if len(self._answers) >= most:
            message = f"{most} requests run on this connection, the most of this server"
            return Fault("too_many_requests", message, retry_after=1.0)
        return None

    def _cancel(self, message: Cancel) -> list[Order]:
        answer = self._answers.get(message.id)
        if answer is not None:
            return [Stop(answer)] if answer.end is None else []
        if message.id not in self._recent:
            fault = Fault("unknown_id", "no request of this id is on this connection")
            self._put(fault.message_for(message.id))
        return []

    def _resume(self, message: Resume, client: Client, is_checked: bool) -> list[Order]:
        """Take a request up: that of another connection, else that of another server."""
        answer = self._registry.find(message.resume_token)
        if answer is not None and client.may_resume(answer.client):
            fault = self._take_up(message, answer)
        else:
            answer, fault = None, NOBODY_KNOWS
        if fault is None:
            return []
        if message.request is None or fault.code not in ("resume_unknown", "resume_gone"):
            self._put(fault.message_for(message.id))
            return []
        longest = self._settings.resume_seconds
        behind = read_behind(message, client, self._registry.signer, longest)
        # Of what is still here too little was kept: it is generated once more, and once only.
        return self._start(
            message.id, message.request, client, is_checked, behind, message.after, answer
        )

    def _take_up(self, message: Resume, answer: Answer) -> Fault | None:
        """Attach a request of another connection to this one, if that can be."""
        if answer.channel is self:
            return Fault("resume_attached", "this connection has the request already")
        refusal = self._refusal(message.id)
        if refusal is not None and refusal.code != "draining":
            return refusal
        replay = answer.replay
        last = replay.last_seq + (answer.end is not None and answer.end["type"] == "done")
        if message.after > last:
            return Fault("resume_ahead", f"`after` is {message.after}: the last `seq` is {last}")
        if message.after < replay.first_kept - 1:
            told = f"`after` is {message.after}: kept is what comes after {replay.first_kept - 1}"
            return Fault("resume_gone", told)
        if answer.channel is not None:
            answer.channel.give_up(answer)
        self._registry.stay(answer)
        answer.id, answer.channel = message.id, self
        self._answers[message.id] = answer
        # Both are there before anybody hears of it: ``on_ready`` may flush at once.
        self._marked[answer] = replay.after(message.after)
        self.put_accepted(answer, None)
        return None

    def give_up(self, answer: Answer) -> None:
        """Another connection has taken an answer over."""
        told = "another connection has resumed this request"
        request_id = answer.id
        self._release(answer)  # before the message: to put that may flush at once
        self._put(Fault("resume_moved", told).message_for(request_id))

    def _release(self, answer: Answer) -> None:
        """Let an answer go."""
        del self._answers[answer.id]
        self._marked.pop(answer, None)
        answer.channel = None

    def _put(self, message: dict[str, Any]) -> None:
        self._outbox.append(message)
        self.on_ready()


def _delta(answer: Answer, piece: Piece) -> dict[str, Any]:
    """Lay a piece out."""
    delta: dict[str, Any] = {
        "type": "delta",
        "id": answer.id,
        "seq": piece.seq,
        "text": piece.text,
        "index": piece.index,
    }
    if piece.position is not None:
        delta["position"] = piece.position
    if piece.first_seq != piece.seq:
        delta["first_seq"] = piece.first_seq
    if piece.token_ids is not None:
        delta["token_ids"] = piece.token_ids
        delta["time"] = piece.time
    if piece.reasoning:
        delta["reasoning"] = piece.reasoning
    if piece.tool_calls:
        delta["tool_calls"] = [_without_nones(call) for call in piece.tool_calls]
    if piece.logprobs is not None:
        delta["logprobs"] = piece.logprobs  # dataclasses, laid out as the protocol has them
    if piece.prompt_logprobs is not None:
        delta["prompt_logprobs"] = piece.prompt_logprobs
    return delta


def _without_nones(call: ToolCallDelta) -> dict[str, Any]:
    """A piece of a call as the protocol has it."""
    return {name: value for name, value in asdict(call).items() if value is not None}
