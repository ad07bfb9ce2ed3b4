"""Settings of the application: the model, the number of engines, and times to wait."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from asyncgen_apps.websocket.resume_tokens import LEAST_SECRET, SECRET_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_DRAIN = 30.0

MESSAGES = {"RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1)}
"""Environment of all that take messages: how many bytes one may have. Ray's own 4 MiB are less than
a request may have, and less than the vectors of many texts. Each process reads it once, where it
imports Serve, for what it takes: engines their requests, ingresses and Serve's proxy the answers.
"""

CLUSTER = {"RAY_SERVE_PROXY_USE_GRPC": "1", **MESSAGES}
"""Environment to start a cluster in: messages go straight from the ingress to Serve's proxy."""

_TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The application's shape. Every value can be written in YAML or JSON.

    Attributes:
        model: A folder, ``demo``, or the name of a model in a hub; each replica loads it itself.
        engine: Keyword arguments of ``AsyncLLM``, such as ``dtype`` and ``num_threads``.
        replicas: How many engines, from 1; with ``max_replicas`` the least.
        max_replicas: Up to so many where there is work for them; ``None``: no scaling.
        target_requests: Streams of a replica that are neither too many nor too few, where it
            scales; running and waiting ones count.
        target_pages: Share of a replica's pages that running requests hold, likewise, up to 1.
        upscale_seconds: How long there must be too much work before a replica is added.
        downscale_seconds: How long there must be too little before one is taken away.
        ingresses: How many processes hold connections, from 1.
        num_cpus: Of a replica, as Ray counts them.
        num_gpus: Of a replica.
        max_requests: Streams that a replica takes at a time; the others wait at the ingress.
        max_waiting: Streams that wait at an ingress; one more gets 429.
        drain_seconds: How long streams may go on at a replica, or an ingress, that shall stop.
            What is longer goes on at another replica.
        model_names: Names in requests; empty: ``model``.
        api_keys: That open the ingress; empty: none is needed.
        allowed_hosts: Names by which the ingress may be called where no key is needed.
        with_chat: Whether the chat page is at ``/``.
        resume_secret: Shared by all ingresses, which take each other's streams up, 16 characters
            or more; empty: that of the variable ``ASYNCGEN_RESUME_SECRET``, where the application
            is built; without it one is drawn there, so that ingresses of one that is built anew
            do not know the streams of those before.
    """

    model: str = "demo"
    engine: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    max_replicas: int | None = None
    target_requests: float = 16.0
    target_pages: float = 0.8
    upscale_seconds: float = 3.0
    downscale_seconds: float = 60.0
    ingresses: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    max_requests: int = 256
    max_waiting: int = 256
    drain_seconds: float = DEFAULT_DRAIN
    model_names: Sequence[str] = ()
    api_keys: Sequence[str] = ()
    allowed_hosts: Sequence[str] = ()
    with_chat: bool = False
    resume_secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Refuse what is none.

        Raises:
            ValueError: Names the setting, the value and what is allowed.
        """
        counts = ("replicas", "ingresses", "max_requests", "max_waiting")
        for name in counts:
            if isinstance(getattr(self, name), float):
                raise ValueError(f"`{name}` is {getattr(self, name)!r}: a whole number")
        least = {
            "replicas": 1,
            "ingresses": 1,
            "max_requests": 1,
            "max_waiting": 0,
            "num_cpus": 0,
            "num_gpus": 0,
            "drain_seconds": 0,
            "upscale_seconds": 0,
            "downscale_seconds": 0,
        }
        for name, lowest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < lowest:
                raise ValueError(f"`{name}` is {value!r}: a number from {lowest}")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            allowed = f"at least `replicas`, which is {self.replicas}"
            raise ValueError(f"`max_replicas` is {self.max_replicas!r}: {allowed}")
        if 0 < len(self.resume_secret) < LEAST_SECRET:
            raise ValueError(f"`resume_secret` is too short: {LEAST_SECRET} characters or more")
        if self.target_requests <= 0:
            raise ValueError(f"`target_requests` is {self.target_requests!r}: a number above 0")
        if not 0 < self.target_pages <= 1:
            raise ValueError(f"`target_pages` is {self.target_pages!r}: above 0, up to 1")


def read_settings(values: Mapping[str, Any]) -> RaySettings:
    """Read settings by name; on a command line of Serve all are texts.

    Raises:
        ValueError: A name that is none, or a value that is not allowed.
    """
    names = {field.name: field for field in fields(RaySettings)}
    read: dict[str, Any] = {}
    for name, value in values.items():
        if name not in names:
            raise ValueError(f"`{name}` is no setting; there are {', '.join(names)}")
        read[name] = _typed(name, value)
    return RaySettings(**read)


def with_secret(settings: RaySettings, environ: Mapping[str, str]) -> RaySettings:
    """Settings that have a secret: their own, else the variable's, else one that is drawn.

    Raises:
        ValueError: That of the variable is too short.
    """
    if settings.resume_secret:
        return settings
    given = environ.get(SECRET_VARIABLE, "").strip()
    if 0 < len(given) < LEAST_SECRET:
        raise ValueError(f"{SECRET_VARIABLE} is too short: {LEAST_SECRET} characters or more")
    return replace(settings, resume_secret=given or secrets.token_urlsafe(32))


def _typed(name: str, value: Any) -> Any:
    """A value as its setting has it, where it came as a text."""
    default = getattr(RaySettings(), name)
    if not isinstance(value, str) or isinstance(default, str):
        return value
    if isinstance(default, bool):
        if (word := value.lower()) not in _TRUTHS:
            raise ValueError(f"`{name}` is {value!r}: one of {', '.join(_TRUTHS)}")
        return _TRUTHS[word]
    if isinstance(default, int | float) or name == "max_replicas":
        try:
            return float(value) if isinstance(default, float) else int(value)
        except ValueError:
            raise ValueError(f"`{name}` is {value!r}: a number") from None
    if isinstance(default, tuple):
        return tuple(value.split())
    raise ValueError(f"`{name}` is {value!r}: it cannot be given as a text; write it in a file")
