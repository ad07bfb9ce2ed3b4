"""Settings of an HTTP server, checked when created."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from asyncgen_apps.serving.clients import Keys, Proxies
from asyncgen_apps.serving.origins import check_hosts
from asyncgen_apps.serving.sockets import HEAD_BYTES, room, too_many

_ABOVE_ZERO = (
    "max_body_bytes",
    "max_requests",
    "ping_seconds",
    "stall_seconds",
    "body_seconds",
    "body_rate",
    "head_seconds",
    "max_head_bytes",
    "max_connections",
    "chat_max_body_bytes",
    "chat_max_memory_bytes",
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of the application beside the model.

    Attributes:
        model_names: Names that requests may use; the first one is shown in replies.
        api_keys: Keys that open ``/v1``; none leaves it open.
        cors_origins: Origins whose pages may call; ``"*"`` is any.
        allowed_hosts: Names that the server may be called by; ``None`` or ``"*"`` is any. Give
            some where others than you can reach it by a browser and no key is asked for.
        trusted_proxies: Addresses and networks whose ``X-Forwarded-For`` says who a client is;
            ``"unix"`` is whoever comes over a Unix socket.
        allow_priority: True if requests may set `priority` among those of a client.
        priority_keys: The API keys whose requests may, where not all may.
        open_metrics: True if ``/metrics`` needs no key.
        open_docs: True if ``/docs`` and ``/openapi.json`` need no key.
        max_body_bytes: Largest request body, in bytes; ``None`` is what the model can use, at most
            8 MiB.
        max_requests: Most requests that generate at a time, of which one client has at most seven
            eighths; one more gets 429.
        ping_seconds: Seconds of silence after which a stream sends a comment.
        stall_seconds: Seconds after which a client that reads nothing is given up.
        body_seconds: Seconds within which a body must have come.
        body_rate: Bytes a second that a body must bring, on an average of ``head_seconds``.
        head_seconds: Seconds within which the head of a request must have come.
        max_head_bytes: Longest head of a request, in bytes.
        max_connections: Most connections; on others only ``/health`` and ``/ready`` are answered.
        with_chat: Whether the chat page is mounted at ``/``, where gradio is installed.
        chat_max_body_bytes: Largest event of the chat page, in bytes; ``None`` is 4 MiB.
        chat_max_memory_bytes: Most bytes that are kept of the chat page's sessions; ``None`` is
            256 MiB.
    """

    model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = None
    trusted_proxies: tuple[str, ...] = ()
    allow_priority: bool = False
    priority_keys: tuple[str, ...] = ()
    open_metrics: bool = False
    open_docs: bool = False
    max_body_bytes: int | None = None
    max_requests: int = 1024
    ping_seconds: float = 5.0
    stall_seconds: float = 60.0
    body_seconds: float = 60.0
    body_rate: int = 1024
    head_seconds: float = 10.0
    max_head_bytes: int = HEAD_BYTES
    max_connections: int = field(default_factory=room)
    with_chat: bool = False
    chat_max_body_bytes: int | None = None
    chat_max_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: Names the value that is not allowed.
        """
        if not self.model_names or not all(self.model_names):
            raise ValueError(f"model_names is {self.model_names!r}: give at least one name")
        if not all(key.isascii() and key.strip() == key and key for key in self.api_keys):
            raise ValueError("api_keys: a key is ASCII text without spaces around it")
        check_hosts(self.allowed_hosts or ())
        Proxies(self.trusted_proxies)
        Keys(self.api_keys, self.priority_keys)
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}: must be a number above 0")
        if reason := too_many(self.max_connections):
            raise ValueError(f"max_connections is {self.max_connections}: {reason}")

    @property
    def has_several_clients(self) -> bool:
        """False where all that is asked has the one key there is."""
        return len(self.api_keys) != 1 or self.with_chat
