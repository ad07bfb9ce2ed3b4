"""How a server is set up; a value, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the application needs to know beyond the model.

    Attributes:
        model_names: Names that requests may use; the first one is shown in replies.
        api_keys: Keys that open ``/v1``; none leaves it open.
        cors_origins: Origins whose pages may call; ``"*"`` is any.
        max_body_bytes: Largest request body, in bytes.
        max_requests: Most HTTP requests that generate at a time; one more gets 429.
        ping_seconds: Seconds of silence after which a stream sends a comment.
        stall_seconds: Seconds after which a client that reads nothing is given up.
        body_seconds: Seconds within which a body must have come.
        with_chat: Whether the chat page is mounted at ``/``, where gradio is installed.
    """

    model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 8 * 1024 * 1024
    max_requests: int = 1024
    ping_seconds: float = 15.0
    stall_seconds: float = 60.0
    body_seconds: float = 60.0
    with_chat: bool = False

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: Names the value that is not allowed.
        """
        if not self.model_names or not all(self.model_names):
            raise ValueError(f"model_names is {self.model_names!r}: give at least one name")
        if not all(key.isascii() and key.strip() == key and key for key in self.api_keys):
            raise ValueError("api_keys: a key is ASCII text without spaces around it")
        above_zero = "max_body_bytes max_requests ping_seconds stall_seconds body_seconds"
        for name in above_zero.split():
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: must be above 0")
