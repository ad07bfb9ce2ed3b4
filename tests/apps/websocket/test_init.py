"""The names of the package, each imported when it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import asyncgen_apps.websocket


@pytest.mark.parametrize("name", asyncgen_apps.websocket.__all__)
def test_a_name_is_what_it_says(name: str) -> None:
    assert getattr(asyncgen_apps.websocket, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        asyncgen_apps.websocket.nothing  # noqa: B018


def test_a_client_needs_neither_torch_nor_the_server() -> None:
    code = "import sys; from asyncgen_apps.websocket import connect; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "asyncgen_apps.websocket.client.client" in loaded
    assert not loaded & {"torch", "asyncgen_apps.websocket.server", "websockets.asyncio.server"}
