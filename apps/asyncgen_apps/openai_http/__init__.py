"""An OpenAI-compatible HTTP server over an ``AsyncLLM``.

Names are imported when they are first used: what answers bodies from a file needs no server.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncgen_apps.openai_http.app import create_app
    from asyncgen_apps.openai_http.concurrency_limit import Gate
    from asyncgen_apps.openai_http.settings import ServerSettings

__all__ = ["Gate", "ServerSettings", "create_app"]

_HOMES = {"Gate": "concurrency_limit", "ServerSettings": "settings", "create_app": "app"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
