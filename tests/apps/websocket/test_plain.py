"""Plain replies as values; on the wire they are tested with the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from asyncgen_apps.websocket.plain import PlainReplies
from asyncgen_apps.websocket.service import StreamService

if TYPE_CHECKING:
    from pathlib import Path

    from asyncgen import AsyncLLM


class Dead:
    """An engine that is not there any more."""

    healthy = False


def test_a_dead_engine(tmp_path: Path) -> None:
    service = StreamService(cast("AsyncLLM", Dead()))
    plain = PlainReplies(service, page=tmp_path / "missing.html")
    assert plain.reply("/healthz").status == plain.reply("/readyz?x=1").status == 503
    assert plain.reply("/metrics").status == 200
    assert b"vllm" not in plain.reply("/metrics").body
    assert plain.reply("/").status == 200
    assert plain.reply("/v1/stream").status == 426
    assert plain.reply("/../etc/passwd").status == 404


def test_a_page(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_bytes(b"<p>")
    service = StreamService(cast("AsyncLLM", Dead()))
    reply = PlainReplies(service, page=file).reply("/")
    assert (reply.status, reply.body) == (200, b"<p>")
    assert reply.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert PlainReplies(service, page=None).reply("/").body != b"<p>"
