"""A stream whose making was interrupted is dropped in silence."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from asyncgen_apps.remote.streams import RemoteStream
from asyncgen_apps.websocket.client import stream as client
from tests.cases import for_each

if TYPE_CHECKING:
    import pytest


@for_each("kind", [RemoteStream, client.RemoteStream])
def test_a_stream_that_was_not_made_is_dropped_in_silence(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    half = object.__new__(kind)
    del half
    assert not told
