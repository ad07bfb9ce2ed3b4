"""An engine that lives elsewhere, and streams that outlive the machine they run on.

`RemoteLLM` is an engine over others of the same model, wherever they are: it sends each request to
one of them, and when that one is lost, asks another to go on behind the tokens that were read. How
messages travel it is told (`Calls`); the room ``ray_serve`` has them travel by Ray.

`wire` is what crosses, `serving` stands beside the real engine, `progress` is how far an answer is,
`streams` reads one, `engine` is the face of all.
"""

from asyncgen_apps.remote.engine import RemoteLLM
from asyncgen_apps.remote.messages import (
    Call,
    Calls,
    Facts,
    MessageTooLargeError,
    Order,
    ReplicaLostError,
)
from asyncgen_apps.remote.progress import LostStreamError

__all__ = [
    "Call",
    "Calls",
    "Facts",
    "LostStreamError",
    "MessageTooLargeError",
    "Order",
    "RemoteLLM",
    "ReplicaLostError",
]
