"""Define and check the settings of a WebSocket server."""

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
    """Return the default of ``max_connections``: 1024, or less if few files may be open."""
    return min(1024, room())


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of a WebSocket server except the model and the socket.

    Attributes:
        model_name: Name of the model in ``hello``.
        tokens: Bearer tokens of the clients; empty serves every client.
        origins: Origins whose pages may connect, besides the server's own; ``"*"`` is any.
        allowed_hosts: Host names of the server; ``None`` or ``"*"`` is any.
        trusted_proxies: Addresses and networks whose ``X-Forwarded-For`` is trusted; ``"unix"``
            trusts every peer on a Unix socket.
        allow_priority: True if clients may set the ``priority`` of their requests.
        priority_keys: Tokens whose clients may set it, if not all may.
        open_metrics: True if ``/metrics`` needs no token.
        max_connections: Most connections at a time, of which one client has at most seven eighths;
            one more is closed with 1013.
        max_requests: Most requests at a time on a connection.
        max_message_bytes: Longest message of a client; ``None`` is what the model can use, at most
            1 MiB, or 8 MiB in ``asyncgen serve``.
        max_prompt_tokens: Longest prompt; ``None`` for the model's context.
        replay_bytes: Bytes of a request that are kept to be sent again; its number of tokens
            bounds them as well.
        kept_bytes: Bytes that are kept of all ended requests; the oldest of the client with most
            are dropped first.
        grace_seconds: Time for which a request runs without its client, and is kept after its end.
        heartbeat_seconds: Time between pings; a client that answers none for as long is dropped.
        send_seconds: Time after which a client is dropped that reads none of its messages.
        open_seconds: Time for the handshake, and for authentication.
        drain_seconds: Time for running streams when the server shuts down.
        log_prompts: True writes prompts and parameters into the log.
        resume_secret: Secret of all servers that resume each other's requests, 16 characters or
            more; empty if only the server that began a request resumes it.
        resume_seconds: Time after the first acceptance in which another server may resume.
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
        """Return the settings with a limit for messages: what the model can use, if none is set.

        Args:
            llm: An open engine.
            most: Largest limit, in bytes.
        """
        if self.max_message_bytes is not None:
            return self
        return replace(self, max_message_bytes=longest_request(llm, most))

    @property
    def has_several_clients(self) -> bool:
        """False where all connections have the one token there is."""
        return len(self.tokens) != 1

    @property
    def limits(self) -> Limits:
        """Limits for ``hello``."""
        return Limits(
            max_message_bytes=self.max_message_bytes or MOST_MESSAGE,
            max_requests=self.max_requests,
            max_prompt_tokens=self.max_prompt_tokens,
            grace_seconds=self.grace_seconds,
            replay_bytes=self.replay_bytes,
        )
