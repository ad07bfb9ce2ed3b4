"""Settings of a WebSocket server, checked when created."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Self

from asyncgen_apps.serving.clients import Keys, Proxies
from asyncgen_apps.serving.limits import MOST_MESSAGE, longest_request
from asyncgen_apps.serving.origins import check_hosts
from asyncgen_apps.serving.sockets import room, too_many
from asyncgen_apps.websocket.messages import Limits
from asyncgen_apps.websocket.resume_tokens import LEAST_SECRET

if TYPE_CHECKING:
    from asyncgen_apps.engine import Engine

_MAY_BE_ZERO = frozenset({"grace_seconds", "drain_seconds", "kept_bytes"})


def most_connections() -> int:
    """Most connections by default: 1024, or what the limit of open files leaves."""
    return min(1024, room())


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of a WebSocket server beside the model and the socket.

    Attributes:
        model_name: What ``hello`` says.
        tokens: Bearer tokens that let a client in; none lets everybody in.
        origins: Origins whose pages may connect, beside the server's own; ``"*"`` is any.
        allowed_hosts: Names that the server may be called by; ``None`` or ``"*"`` is any.
        trusted_proxies: Addresses and networks whose ``X-Forwarded-For`` says who a client is;
            ``"unix"`` is whoever comes over a Unix socket.
        allow_priority: Whether clients may say which of their requests goes first.
        priority_keys: The tokens whose clients may, where not all may.
        open_metrics: Whether ``/metrics`` is read without a token.
        max_connections: Most connections at a time; one more is closed with 1013.
        max_requests: Most requests at a time on a connection.
        max_message_bytes: Longest message from a client; ``None`` is what the model can use, at
            most 1 MiB, or in ``asyncgen serve`` 8.
        max_prompt_tokens: Longest prompt; ``None`` leaves it to the model's context.
        replay_bytes: How many bytes of a request are kept to be sent again; its number of
            tokens bounds them as well.
        kept_bytes: How much of all requests that have ended is kept for clients that may come
            back; the oldest goes first.
        grace_seconds: How long a request goes on without its client, and is kept after its end.
        heartbeat_seconds: Time between pings; a client that answers none for as long is gone.
        send_seconds: How long a client may read nothing while something is there for it.
        open_seconds: How long a client may take for the handshake, and to authenticate.
        drain_seconds: How long streams may go on after the server was asked to leave.
        log_prompts: Write prompts and parameters into the log.
        resume_secret: Shared by servers that take each other's requests up, 16 characters or
            more; empty: a request is known to the server alone that began it.
        resume_seconds: How long after its first acceptance a request may be taken up elsewhere.
    """

    model_name: str = "demo"
    tokens: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = None
    trusted_proxies: tuple[str, ...] = ()
    allow_priority: bool = False
    priority_keys: tuple[str, ...] = ()
    open_metrics: bool = False
    max_connections: int = field(default_factory=most_connections)
    max_requests: int = 64
    max_message_bytes: int | None = None
    max_prompt_tokens: int | None = None
    replay_bytes: int = 1024 * 1024
    kept_bytes: int = 64 * 1024 * 1024
    grace_seconds: float = 30.0
    heartbeat_seconds: float = 20.0
    send_seconds: float = 20.0
    open_seconds: float = 10.0
    drain_seconds: float = 30.0
    log_prompts: bool = False
    resume_secret: str = field(default="", repr=False)
    resume_seconds: float = 24 * 3600.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: Names the value that is not allowed; never shows a token.
        """
        if not self.model_name:
            raise ValueError("model_name is empty: give the model a name")
        if not all(
            token and token.isascii() and token.isprintable() and " " not in token
            for token in self.tokens
        ):
            raise ValueError("tokens: a token is printable ASCII without spaces")
        if 0 < len(self.resume_secret) < LEAST_SECRET:
            raise ValueError(f"resume_secret: {LEAST_SECRET} characters or more")
        check_hosts(self.allowed_hosts or ())
        Proxies(self.trusted_proxies)
        Keys(self.tokens, self.priority_keys)
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            low = "from 0" if one.name in _MAY_BE_ZERO else "above 0"
            if not math.isfinite(value) or value < 0 or (value == 0 and low == "above 0"):
                raise ValueError(f"{one.name} is {value}: must be a finite number {low}")
        if reason := too_many(self.max_connections):
            raise ValueError(f"max_connections is {self.max_connections}: {reason}")

    def sized(self, llm: Engine, most: int = MOST_MESSAGE) -> Self:
        """The same with a limit of messages, if there is none: what a model can use.

        Args:
            llm: An open engine.
            most: What it is at most.
        """
        if self.max_message_bytes is not None:
            return self
        return replace(self, max_message_bytes=longest_request(llm, most))

    @property
    def limits(self) -> Limits:
        """Limits that clients are told."""
        return Limits(
            max_message_bytes=self.max_message_bytes or MOST_MESSAGE,
            max_requests=self.max_requests,
            max_prompt_tokens=self.max_prompt_tokens,
            grace_seconds=self.grace_seconds,
            replay_bytes=self.replay_bytes,
        )
