"""Settings that can be, a socket, signals, and a drain with an end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.openai_http.server import LAST_WORDS, _is_no_cut, bind
from asyncgen_apps.openai_http.settings import ServerSettings
from tests.apps.openai_http.running import PATIENCE, running, wait_for
from tests.apps.openai_http.test_answer import scripted
from tests.cases import for_each
from tests.doubles.models import Gate

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running


BODY = {"model": "demo", "prompt": [1], "max_tokens": 100, "stream": True}


def test_a_port_that_is_taken() -> None:
    with bind("127.0.0.1", 0) as first, pytest.raises(OSError):
        bind("127.0.0.1", first.getsockname()[1])


def test_an_address_with_colons() -> None:
    try:
        with bind("::1", 0) as listener:
            assert listener.family == socket.AF_INET6
    except OSError:
        pytest.skip("no IPv6 here")


def ask(served: Running, replies: list[Any]) -> threading.Thread:
    visitor = threading.Thread(target=lambda: replies.append(served.post("/completions", BODY)))
    visitor.start()
    return visitor


@pytest.mark.parametrize("insist", [False, True])
def test_a_drain_ends(insist: bool) -> None:
    """After its time, or when asked again, what still runs ends with an error event."""
    gate = Gate()
    replies: list[Any] = []
    with running(scripted(gate), drain_seconds=60 if insist else 0.05) as served:
        gate.allow(3)
        visitor = ask(served, replies)
        gate.wait_arrived(4)
        served.call(served.server.leave)
        wait_for(lambda: served.gate.draining)
        if insist:
            served.call(served.server.leave)
        wait_for(lambda: served.gate.count == 0)
        gate.open()
        visitor.join()
    events = replies[0].events()
    assert events[-1]["error"]["code"] == "shutting_down"


class _Deaf:
    """A request whose client reads nothing, not even that it was cut off."""

    def abort(self, error: object) -> None: ...


def test_the_times_of_a_drain_do_not_add_up() -> None:
    """Behind the time of the drain all that is left has the same seconds for its last words."""
    with contextlib.ExitStack() as stack:
        with running(scripted(), drain_seconds=0.05) as served:
            stack.enter_context(served.gate.admit(_Deaf(), "deaf"))
            began = time.monotonic()
            served.call(served.server.leave)
        took = time.monotonic() - began
    assert LAST_WORDS <= took < 2 * LAST_WORDS


def test_an_upload_under_way_hears_that_the_server_ends(caplog: pytest.LogCaptureFixture) -> None:
    lines = [
        "POST /v1/completions HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        "Content-Length: 100",
        "Expect: 100-continue",
    ]
    with running(scripted(), drain_seconds=60) as served:
        wire = socket.create_connection(("127.0.0.1", served.port), PATIENCE)
        wire.sendall("\r\n".join([*lines, "", "{"]).encode())
        assert b" 100 " in wire.recv(4096)  # it reads the body
        for _ in range(2):
            served.call(served.server.leave)
    with wire:
        content = b"".join(iter(lambda: wire.recv(4096), b""))
    assert b" 503 " in content
    assert b"shutting_down" in content
    assert not caplog.records


def test_draining_server_refuses_new_requests() -> None:
    with running(scripted()) as served:
        served.gate.drain()
        assert served.request("GET", "/health").status == 200
        assert served.request("GET", "/ready").status == 503
        got = served.post("/completions", BODY)
        assert (got.status, got.error["code"]) == (503, "shutting_down")
        assert got.headers["retry-after"] == "5"


def test_notice_comes_before_the_drain() -> None:
    """Until its time is over, or a second signal comes, `/ready` alone tells."""
    with running(scripted(), notice_seconds=60.0) as served:
        served.call(served.server.leave)
        wait_for(lambda: served.request("GET", "/ready").status == 503)
        assert served.request("GET", "/health").status == 200
        assert served.post("/completions", {**BODY, "max_tokens": 2}).status == 200
        assert not served.gate.draining
        served.call(served.server.leave)
        wait_for(lambda: served.gate.draining)


def test_notice_ends() -> None:
    with running(scripted(), notice_seconds=0.05) as served:
        served.call(served.server.leave)
        wait_for(lambda: served.gate.draining)


@for_each(
    "values",
    [
        {"model_names": ()},
        {"model_names": ("",)},
        {"api_keys": ("",)},
        {"api_keys": (" a",)},
        {"api_keys": ("ä",)},
        {"max_body_bytes": 0},
        {"max_requests": 0},
        {"ping_seconds": 0.0},
        {"stall_seconds": -1.0},
        {"body_seconds": 0.0},
        {"body_rate": 0},
        {"head_seconds": 0.0},
        {"max_head_bytes": 0},
        {"max_connections": 0},
        {"max_connections": 10**9},
    ],
)
def test_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        ServerSettings(**{"model_names": ("demo",), **values})


def test_open_by_default() -> None:
    assert ServerSettings(("demo",)).api_keys == ()


def test_tasks_that_a_forced_end_cancels_are_not_logged() -> None:
    def record(error: BaseException | None, text: str = "Exception in ASGI application") -> Any:
        info = None if error is None else (type(error), error, None)
        return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, text, (), info)

    chained = RuntimeError("response already started")
    chained.__cause__ = asyncio.CancelledError()
    for error in (asyncio.CancelledError(), chained):
        assert not _is_no_cut(record(error))
    assert not _is_no_cut(record(None, "Traceback …\nasyncio.exceptions.CancelledError\n"))
    assert _is_no_cut(record(ValueError()))
    assert _is_no_cut(record(None, "Shutting down"))
