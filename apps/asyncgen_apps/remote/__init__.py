"""Use engines in other processes as one, with streams that survive the loss of an engine.

`RemoteLLM` sends each request to one of several engines of the same model. If that engine is lost,
another one resumes behind the tokens that were read. A transport (`Calls`) carries the messages;
the package ``ray_serve`` has one for Ray.

`engine` has `RemoteLLM`, `streams` its streams, `pump` the failover of one stream, `progress` what
was read of it, `messages` the messages, and `worker` the code beside the real engine.
"""

from asyncgen_apps.remote.engine import RemoteLLM
from asyncgen_apps.remote.messages import (
    Call,
    Calls,
    EngineFacts,
    MessageTooLargeError,
    ReplicaLostError,
    StreamRequest,
)
from asyncgen_apps.remote.progress import LostStreamError

__all__ = [
    "Call",
    "Calls",
    "EngineFacts",
    "LostStreamError",
    "MessageTooLargeError",
    "StreamRequest",
    "RemoteLLM",
    "ReplicaLostError",
]
