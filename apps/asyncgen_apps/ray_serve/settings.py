"""Define and read the settings of the application: model, number of engines, times."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from asyncgen_apps.websocket.resume_tokens import LEAST_SECRET, SECRET_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_DRAIN = 30.0

MESSAGE_ENV = {"RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(2**31 - 1)}
"""Environment of all processes that receive messages: the most bytes of one. Ray's default of 4 MiB
is too small for large requests and for the vectors of many texts. Each process reads it when it
imports Serve, for what it receives: engines for requests, ingresses and Serve's proxy for answers.
"""

CLUSTER_ENV = {"RAY_SERVE_PROXY_USE_GRPC": "1", **MESSAGE_ENV}
"""Environment of a new cluster: messages go directly from the ingress to Serve's proxy."""

_COUNTS = ("replicas", "ingresses", "max_requests", "max_waiting")
_AMOUNTS = ("num_cpus", "num_gpus", "drain_seconds", "upscale_seconds", "downscale_seconds")
_TRUTHS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class RaySettings:
    """Settings of the application. Every value can be written in YAML or JSON.

    Attributes:
        model: A folder, ``demo``, or the name of a model in a hub; each replica loads it.
        engine: Keyword arguments of ``AsyncLLM``, such as ``dtype`` and ``num_threads``.
        replicas: Number of engines, from 1; with ``max_replicas`` the smallest number.
        max_replicas: Largest number of engines; ``None`` turns autoscaling off.
        target_requests: Running and waiting streams that a replica should have, for autoscaling.
        target_pages: Share of its pages that a replica should use, up to 1, for autoscaling.
        upscale_seconds: Time of too much load before a replica is added.
        downscale_seconds: Time of too little load before a replica is removed.
        ingresses: Number of processes that hold connections, from 1.
        num_cpus: CPUs of a replica, as Ray counts them.
        num_gpus: GPUs of a replica.
        max_requests: Most streams of a replica at a time; others wait at the ingress.
        max_waiting: Most streams that wait at an ingress; one more gets 429.
        drain_seconds: Time for running streams when a replica or an ingress stops; after that they
            resume at another replica.
        model_names: Model names in requests; empty for ``model``.
        api_keys: Keys of the clients; empty if none is needed.
        allowed_hosts: Host names of the ingress, if no key is needed.
        with_chat: True serves the chat page at ``/``.
        resume_secret: Secret of all ingresses, which resume each other's streams, 16 characters or
            more; empty takes the variable ``ASYNCGEN_RESUME_SECRET`` where the application is
            built. Without it one is drawn there, and a rebuilt application does not know the
            streams of the one before.
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
        """Check the values.

        Raises:
            ValueError: Names the setting, the value and what is allowed.
        """
        for name in _COUNTS:
            if isinstance(getattr(self, name), float):
                raise ValueError(f"`{name}` is {getattr(self, name)!r}: a whole number")
        for name in (*_COUNTS, *_AMOUNTS):
            value = getattr(self, name)
            least = 1 if name in ("replicas", "ingresses", "max_requests") else 0
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise ValueError(f"`{name}` is {value!r}: a number from {least}")
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
    """Read settings by name; on the command line of Serve all values are texts.

    Raises:
        ValueError: A name is unknown, or a value is not allowed.
    """
    names = {field.name: field for field in fields(RaySettings)}
    read: dict[str, Any] = {}
    for name, value in values.items():
        if name not in names:
            raise ValueError(f"`{name}` is no setting; there are {', '.join(names)}")
        read[name] = _typed(name, value)
    return RaySettings(**read)


def with_secret(settings: RaySettings, environ: Mapping[str, str]) -> RaySettings:
    """Return settings with a secret: the given one, else that of the variable, else a random one.

    Raises:
        ValueError: The secret of the variable is too short.
    """
    if settings.resume_secret:
        return settings
    given = environ.get(SECRET_VARIABLE, "").strip()
    if 0 < len(given) < LEAST_SECRET:
        raise ValueError(f"{SECRET_VARIABLE} is too short: {LEAST_SECRET} characters or more")
    return replace(settings, resume_secret=given or secrets.token_urlsafe(32))


def _typed(name: str, value: Any) -> Any:
    """Convert a text to the type of its setting; return other values unchanged."""
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
