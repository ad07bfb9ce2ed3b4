"""Serve one model on several machines by Ray Serve.

`build_app` makes the application for ``serve run`` and KubeRay. An ingress runs ``create_app`` over
a `RemoteLLM`; a replica runs one ``AsyncLLM``. A stream whose replica is lost resumes at another
one, with the same tokens.

It needs the extra ``ray``: ``pip install "asyncgen[ray]"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen_apps.ray_serve.settings import RaySettings, read_settings

if TYPE_CHECKING:
    from asyncgen_apps.ray_serve.app import build_app

__all__ = ["RaySettings", "build_app", "read_settings"]


def __getattr__(name: str) -> Any:
    """Import `build_app`, which needs Ray, on first use."""
    if name == "build_app":
        from asyncgen_apps.ray_serve.app import build_app

        return build_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
