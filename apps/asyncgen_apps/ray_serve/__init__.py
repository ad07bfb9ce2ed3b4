"""One model on many machines, by Ray Serve: the servers of this library over engines elsewhere.

`build_app` gives what ``serve run`` and KubeRay take. An ingress holds the whole of ``create_app``
over a `RemoteLLM`, a replica holds one ``AsyncLLM``; a stream whose replica is lost goes on at
another one, with the same tokens.

It needs the extra ``ray``: ``pip install "asyncgen[ray]"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen_apps.ray_serve.settings import RaySettings, read_settings

if TYPE_CHECKING:
    from asyncgen_apps.ray_serve.app import build_app

__all__ = ["RaySettings", "build_app", "read_settings"]


def __getattr__(name: str) -> Any:
    """Import Ray with what needs it, and not before."""
    if name == "build_app":
        from asyncgen_apps.ray_serve.app import build_app

        return build_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
