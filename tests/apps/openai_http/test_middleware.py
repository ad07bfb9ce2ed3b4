"""Keys in constant time, bodies in time; over real HTTP, the rest is in test_app."""

from __future__ import annotations

import hmac
import socket
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from apps.openai_http.middleware import Keys
from tests.apps.openai_http.running import running
from tests.apps.openai_http.test_answer import scripted

if TYPE_CHECKING:
    import pytest


@given(keys=st.lists(st.text(min_size=1), min_size=1), other=st.text())
def test_keys(keys: list[str], other: str) -> None:
    known = Keys([key for key in keys if key.isascii()])
    assert all(known.accepts(key) for key in keys if key.isascii())
    if other not in keys:
        assert not known.accepts(other)
    assert bool(Keys(()).accepts(other)) is False


def test_all_keys_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def compare(given: bytes, known: bytes) -> bool:
        seen.append(known)
        return given == known

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert Keys(("a", "b", "c")).accepts("a")
    assert len(seen) == 3
    assert {len(one) for one in seen} == {32}


def test_a_body_that_does_not_come() -> None:
    with running(scripted(), body_seconds=0.1) as served:
        with socket.create_connection(("127.0.0.1", served.port), 10) as wire:
            wire.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
                b"Content-Type: application/json\r\n\r\n{"
            )
            assert b" 408 " in wire.recv(1000)
