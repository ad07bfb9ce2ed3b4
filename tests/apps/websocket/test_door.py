"""Who is let in."""

from __future__ import annotations

import hmac

import pytest

from asyncgen_apps.websocket.door import Door, is_loopback
from asyncgen_apps.websocket.failures import Fault
from asyncgen_apps.websocket.settings import StreamSettings


def door(**settings: object) -> Door:
    return Door(StreamSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, False),
        ("Bearer right", True),
        ("bearer  right ", True),
        ("Bearer also", True),
        ("Bearer wrong", "unauthorized"),
        ("Bearer", "unauthorized"),
        ("", "unauthorized"),
        ("Basic right", "unauthorized"),
        ("Bearer right, Bearer wrong", "unauthorized"),
        ("Bearer r\u00edght", "unauthorized"),
    ],
)
def test_headers(header: str | None, expected: bool | str) -> None:
    got = door(tokens=("right", "also")).admit(header, None, "host")
    assert (got.code if isinstance(got, Fault) else got) == expected


def test_every_token_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest

    def count(a: bytes, b: bytes) -> bool:
        compared.append(len(a) == len(b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", count)
    assert door(tokens=("right", "also", "third")).accepts("right")
    assert compared == [True] * 3


@pytest.mark.parametrize(
    ("origin", "host", "welcome"),
    [
        (None, "a.example", True),
        ("https://a.example", "a.example", True),
        ("https://A.example", "a.example:443", True),
        ("http://a.example:80", "a.example", True),
        ("http://a.example:8765", "a.example:8765", True),
        ("http://[::1]:8765", "[::1]:8765", True),
        ("https://a.example", "a.example:80", False),
        ("http://a.example:1", "a.example:2", False),
        ("https://evil.example", "a.example", False),
        ("https://a.example.evil.example", "a.example", False),
        ("https://good.example", "a.example", True),
        ("https://good.example:444", "a.example", False),
        ("null", "a.example", False),
        ("null", None, False),
        ("null", "null", False),
        ("", "", False),
        ("http://[bad", "[bad", False),
        ("https://a.example", None, False),
    ],
)
def test_origins(origin: str | None, host: str | None, welcome: bool) -> None:
    got = door(origins=("https://good.example/",)).admit(None, origin, host)
    assert (got is True) is welcome
    assert door(origins=("*",)).admit(None, origin, host) is True


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))
