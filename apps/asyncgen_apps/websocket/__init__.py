"""Token streams over WebSocket: the protocol ``asyncgen.v1``, its server and its client.

Names are imported when they are first used: a client needs nothing of the server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncgen_apps.websocket.client.client import Client, connect
    from asyncgen_apps.websocket.client.errors import (
        ConnectionLostError,
        RemoteError,
        UnauthorizedError,
    )
    from asyncgen_apps.websocket.server import StreamServer, serve_websocket
    from asyncgen_apps.websocket.service import StreamService
    from asyncgen_apps.websocket.settings import StreamSettings

__all__ = [
    "Client",
    "ConnectionLostError",
    "RemoteError",
    "StreamServer",
    "StreamService",
    "StreamSettings",
    "UnauthorizedError",
    "connect",
    "serve_websocket",
]

_HOMES = {
    "Client": "client.client",
    "ConnectionLostError": "client.errors",
    "RemoteError": "client.errors",
    "StreamServer": "server",
    "StreamService": "service",
    "StreamSettings": "settings",
    "UnauthorizedError": "client.errors",
    "connect": "client.client",
    "serve_websocket": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
