"""Settings that can be, who is let in, and plain replies as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from asyncgen_apps.serving.clients import Client
from asyncgen_apps.websocket.authentication import Authenticator
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.http_routes import HttpRoutes
from asyncgen_apps.websocket.service import StreamService
from asyncgen_apps.websocket.settings import StreamSettings
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from asyncgen_apps.engine import Engine


def authenticator(**settings: object) -> Authenticator:
    return Authenticator(StreamSettings(**settings))  # type: ignore[arg-type]


@for_each(
    ("header", "expected"),
    [
        (None, None),
        ("Bearer right", "right"),
        ("bearer  right ", "right"),
        ("Bearer also", "also"),
        ("Bearer wrong", "unauthorized"),
        ("Bearer", "unauthorized"),
        ("", "unauthorized"),
        ("Basic right", "unauthorized"),
        ("Bearer right, Bearer wrong", "unauthorized"),
        ("Bearer r\u00edght", "unauthorized"),
    ],
)
def test_headers(header: str | None, expected: str | None) -> None:
    mine = authenticator(tokens=("right", "also"))
    got = mine.admit(header, None, "host")
    if isinstance(got, Client):
        assert expected is not None
        assert got == mine.find(expected)
    else:
        assert (got.code if isinstance(got, Fault) else got) == expected


def test_client_without_token_is_identified_by_address() -> None:
    mine = authenticator(trusted_proxies=("10.0.0.0/8",))
    got = mine.admit(None, None, "host", remote="10.0.0.1", forwarded_for="203.0.113.7")
    assert got == Client("203.0.113.7")
    got = mine.admit(None, None, "host", remote="203.0.113.8", forwarded_for="203.0.113.7")
    assert got == Client("203.0.113.8")


@for_each(
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
    got = authenticator(origins=("https://good.example/",)).admit(None, origin, host)
    assert isinstance(got, Client) is welcome
    assert isinstance(authenticator(origins=("*",)).admit(None, origin, host), Client)


@for_each(
    ("wrong", "said"),
    [
        ({"model_name": ""}, "model_name"),
        ({"tokens": ("",)}, "tokens"),
        ({"tokens": ("se cret",)}, "tokens"),
        ({"tokens": ("sécret",)}, "tokens"),
        ({"max_connections": 0}, "max_connections is 0"),
        ({"max_prompt_tokens": -1}, "max_prompt_tokens is -1"),
        ({"heartbeat_seconds": 0}, "heartbeat_seconds is 0"),
        ({"send_seconds": float("inf")}, "send_seconds is inf"),
        ({"grace_seconds": float("nan")}, "grace_seconds is nan"),
        ({"drain_seconds": -1}, "from 0"),
        ({"allowed_hosts": ("a.example:80",)}, "allowed_hosts has 'a.example:80'"),
        ({"trusted_proxies": ("proxy",)}, "trusted_proxies has 'proxy'"),
    ],
)
def test_wrong_settings_are_refused_without_leaking_secrets(
    wrong: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        StreamSettings(**wrong)  # type: ignore[arg-type]
    assert "cret" not in str(refused.value)


def test_zero_where_it_means_something() -> None:
    settings = StreamSettings(grace_seconds=0, drain_seconds=0, kept_bytes=0)
    assert settings.limits.grace_seconds == 0


class Dead:
    """An engine that is not there any more."""

    is_healthy = False


@pytest.mark.anyio
async def test_a_dead_engine(tmp_path: Path) -> None:
    service = StreamService(cast("Engine", Dead()))
    plain = HttpRoutes(service, page=tmp_path / "missing.html")
    for path in ("/healthz", "/readyz?x=1"):
        assert (await plain.reply(path)).status == 503
    assert (await plain.reply("/metrics")).status == 200
    assert b"vllm" not in (await plain.reply("/metrics")).body
    assert (await plain.reply("/")).status == 200
    assert (await plain.reply("/v1/stream")).status == 426
    assert (await plain.reply("/../etc/passwd")).status == 404


@pytest.mark.anyio
async def test_a_page(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(b"<p>")
    service = StreamService(cast("Engine", Dead()))
    reply = await HttpRoutes(service, page=file).reply("/")
    assert (reply.status, reply.body) == (200, b"<p>")
    assert reply.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert (await HttpRoutes(service, page=None).reply("/")).body != b"<p>"
