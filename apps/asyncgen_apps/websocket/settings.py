"""How streams are served; a value, checked when it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from asyncgen_apps.websocket.messages import Limits

_MAY_BE_ZERO = frozenset({"grace_seconds", "drain_seconds", "kept_bytes"})


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What a server of streams needs to know beyond the model and the socket.

    Attributes:
        model_name: What ``hello`` says.
        tokens: Bearer tokens that let a client in; none lets everybody in.
        origins: Origins whose pages may connect, beside the server's own; ``"*"`` is any.
        max_connections: Most connections at a time; one more is closed with 1013.
        max_requests: Most requests at a time on a connection.
        max_message_bytes: Longest message from a client.
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
    """

    model_name: str = "demo"
    tokens: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_connections: int = 1024
    max_requests: int = 64
    max_message_bytes: int = 1024 * 1024
    max_prompt_tokens: int | None = None
    replay_bytes: int = 1024 * 1024
    kept_bytes: int = 64 * 1024 * 1024
    grace_seconds: float = 30.0
    heartbeat_seconds: float = 20.0
    send_seconds: float = 20.0
    open_seconds: float = 10.0
    drain_seconds: float = 30.0
    log_prompts: bool = False

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
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            low = "from 0" if field.name in _MAY_BE_ZERO else "above 0"
            if not math.isfinite(value) or value < 0 or (value == 0 and low == "above 0"):
                raise ValueError(f"{field.name} is {value}: must be a finite number {low}")

    @property
    def limits(self) -> Limits:
        """What clients are told of it."""
        return Limits(
            max_message_bytes=self.max_message_bytes,
            max_requests=self.max_requests,
            max_prompt_tokens=self.max_prompt_tokens,
            grace_seconds=self.grace_seconds,
            replay_bytes=self.replay_bytes,
        )
