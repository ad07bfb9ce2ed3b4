"""A client that leaves cancels, at once and whatever happens; an error has its place."""

from __future__ import annotations

import json
import random
import re
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen import AsyncLLM
from asyncgen_apps.openai_http import ServerSettings, create_app
from tests.apps.engine_process import EngineProcess
from tests.apps.openai_http.running import running, wait_for
from tests.doubles.models import Gate, TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.apps.openai_http.running import Running

ENDLESS: dict[str, Any] = {"model": "demo", "max_tokens": 900, "ignore_eos": True}
CHAT: dict[str, Any] = {**ENDLESS, "messages": [{"role": "user", "content": "Go on."}]}
TEXT: dict[str, Any] = {**ENDLESS, "prompt": ["Once", "The cat"], "n": 2, "temperature": 1}


def scripted(gate: Gate | None = None, **options: Any) -> Callable[[], AsyncLLM]:
    """An engine whose forward passes are counted and held."""
    model = TableModel(hook=gate, **{"context_length": 4096, **options})
    return lambda: AsyncLLM(model, tokenizer=byte_tokenizer(), prefill_chunk_size=16)


def ended(demo: Running) -> int:
    """Requests that ended in any way."""
    return sum(demo.figures().finished.values())


@pytest.mark.gate
@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.soak)])
@pytest.mark.timeout(240)
def test_random_disconnects_leave_nothing(either: Running, count: int) -> None:
    draw = random.Random(0)
    before = either.figures().finished.get("cancelled", 0)

    def visit(seed: int) -> None:
        mine = random.Random(seed)
        path, body = mine.choice([("/chat/completions", CHAT), ("/completions", TEXT)])
        with either.begin(path, {**body, "stream": mine.random() < 0.6}) as wire:
            left = mine.randrange(4000)
            wire.settimeout(mine.random() / 2)
            try:
                while left > 0 and (got := wire.recv(left)):
                    left -= len(got)
            except TimeoutError:
                pass

    for _ in range(count // 5):
        visitors = [threading.Thread(target=visit, args=(draw.random(),)) for _ in range(5)]
        for visitor in visitors:
            visitor.start()
        for visitor in visitors:
            visitor.join()
    either.wait_idle()
    assert either.figures().finished.get("cancelled", 0) - before >= count // 2
    got = either.post("/chat/completions", {**CHAT, "max_tokens": 3})
    assert got.status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_in_the_middle_of_a_prompt(stream: bool) -> None:
    gate = Gate()
    with running(scripted(gate)) as served:
        try:
            prompt = list(range(200))
            wire = served.begin(
                "/completions", {"model": "demo", "prompt": prompt, "stream": stream}
            )
            gate.allow(2)
            gate.wait_arrived(3)
            wire.close()
            wait_for(lambda: served.gate.count == 0)
        finally:
            gate.open()
        served.wait_idle()
        assert gate.arrived <= 4, "of thirteen chunks"


@pytest.mark.gate
def test_a_long_wait_is_not_silent() -> None:
    """The head of a stream and comments go out while the prompt is computed."""
    gate = Gate()
    with running(scripted(gate), ping_seconds=0.05) as served:
        try:
            wire = served.begin("/completions", {"model": "demo", "prompt": [1], "stream": True})
            got = b""
            while got.count(b": ping") < 3:
                got += wire.recv(1000)
            assert got.startswith(b"HTTP/1.1 200")
            assert b"data:" not in got
        finally:
            gate.open()
        while b"[DONE]" not in got:
            got += wire.recv(1000)
        wire.close()


COUNTS = [0, 16, 32, 48]
"""Tokens that are read after each chunk of a prompt."""


def reports(events: list[Any]) -> list[dict[str, int]]:
    return [event["prompt_progress"] for event in events if "prompt_progress" in event]


@pytest.mark.parametrize("path", ["/completions", "/chat/completions"])
def test_the_progress_of_a_prompt_is_told_where_asked_for(path: str) -> None:
    gate = Gate()
    with running(scripted(gate)) as served:
        body: dict[str, Any] = {"model": "demo", "max_tokens": 3, "stream": True}
        body |= {"stream_options": {"include_usage": True}, "return_progress": True}
        content = "x" * 100
        body |= (
            {"prompt": content}
            if path == "/completions"
            else {"messages": [{"role": "user", "content": content}]}
        )
        try:
            wire = served.begin(path, body)
            got = b""
            for count in COUNTS:
                while b'"processed":%d,' % count not in got:
                    got += wire.recv(1000)
                gate.allow(1)
        finally:
            gate.open()
        while b"[DONE]" not in got:
            got += wire.recv(1000)
        wire.close()
        events = [json.loads(line) for line in re.findall(r"data: ({.*})\n", got.decode())]
        told = reports(events)
        total = events[-1]["usage"]["prompt_tokens"]
        assert [one["processed"] for one in told][:4] == COUNTS and told[-1]["processed"] == total
        assert all(one["total"] == total and one["cache"] == 0 for one in told)
        times = [one["time_ms"] for one in told]
        assert times == sorted(times) and set(told[0]) == {"total", "cache", "processed", "time_ms"}
        places = [place for place, event in enumerate(events) if "prompt_progress" in event]
        assert places == list(range(len(told))), "before the first token"
        assert all(event["usage"] is None for event in events[:-1])
        plain = served.post(path, {**body, "return_progress": False}).events()[:-1]
        assert not reports(plain)
        usual = ("id", "created", "usage")
        texts = [
            [{key: one[key] for key in one if key not in usual} for one in each]
            for each in (plain, [event for event in events if "prompt_progress" not in event])
        ]
        assert texts[0] == texts[1]
        again = served.post(path, body).events()[:-1]
        assert reports(again)[-1]["cache"] > 0 and reports(again)[-1]["processed"] == total


def test_progress_needs_a_stream_and_an_error_keeps_its_shape() -> None:
    def hook(ids: Any, positions: Any) -> None:
        raise ValueError("broken")

    body = {"model": "demo", "prompt": "a", "return_progress": True}
    with running(scripted(hook)) as served:  # type: ignore[arg-type]
        refused = served.post("/completions", body)
        assert (refused.status, refused.error["param"]) == (400, "return_progress")
        failed = served.post("/completions", {**body, "stream": True})
        error = failed.error if failed.status != 200 else failed.events()[-1]["error"]
        assert error["type"] == "server_error" and "broken" not in error["message"]


@pytest.mark.gate
def test_an_engine_that_does_not_tell_refuses_to(either: Running) -> None:
    body = {**ENDLESS, "prompt": "a", "max_tokens": 2, "stream": True, "return_progress": True}
    got = either.post("/completions", body)
    if isinstance(either.llm, EngineProcess):
        assert (got.status, got.error["param"]) == (400, "return_progress")
    else:
        last = reports(got.events()[:-1])[-1]
        assert last["processed"] == last["total"]


def test_pings_come_while_a_prompt_is_read_and_in_the_queue() -> None:
    gate = Gate()
    model = TableModel(hook=gate, context_length=4096)
    make = lambda: AsyncLLM(model, tokenizer=byte_tokenizer(), max_running=1)  # noqa: E731
    with running(make, ping_seconds=0.05) as served:
        body = {"model": "demo", "prompt": [1], "stream": True, "max_tokens": 2}
        wires = [served.begin("/completions", body) for _ in range(2)]
        try:
            for wire in wires:
                got = b""
                while got.count(b": ping\n\n") < 2:
                    got += wire.recv(1000)
                assert b"data:" not in got
        finally:
            gate.open()
        for wire in wires:
            wire.close()


def test_a_failure_in_the_middle_is_an_event() -> None:
    def hook(ids: Any, positions: Any) -> None:
        if int(positions[0, -1]) == 8:
            raise ValueError("a bug")

    with running(scripted(hook)) as served:  # type: ignore[arg-type]
        body = {"model": "demo", "prompt": [1, 2, 3], "stream": True}
        events = served.post("/completions", body).events()
        assert len(events) > 1
        assert events[-1]["error"]["type"] == "server_error"
        assert "[DONE]" not in events
        whole = served.post("/completions", {**body, "stream": False})
        assert whole.status == 500
        assert "a bug" not in whole.error["message"], "the log has it"


@pytest.mark.gate
def test_a_client_that_reads_nothing_is_given_up() -> None:
    # The engine runs free; what it says outgrows every buffer between the two.
    with running(scripted(), ping_seconds=0.05, stall_seconds=0.2) as served:
        body = {
            "model": "demo",
            "prompt": ["a"] * 64,
            "n": 8,
            "max_tokens": 4000,
            "temperature": 1,
            "stream": True,
            "logprobs": 20,
        }
        with served.begin("/completions", body):
            wait_for(lambda: served.gate.count == 1 or ended(served) > 0)
            wait_for(lambda: served.gate.count == 0)
        served.wait_idle()


@pytest.mark.anyio
async def test_the_last_write_is_given_up_like_any_other() -> None:
    body = {"model": "demo", "prompt": [1], "stream": True}
    head = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""}
    scope = {**head, "headers": [(b"content-type", b"application/json")]}
    sent = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive() -> Any:
        return sent.pop() if sent else await anyio.sleep_forever()

    async def send(message: Any) -> None:
        if b"[DONE]" in message.get("body", b""):
            await anyio.sleep_forever()

    async with scripted()() as llm:
        app = create_app(
            llm, ServerSettings(model_names=("demo",), ping_seconds=0.05, stall_seconds=0.2)
        )
        with anyio.fail_after(60):
            await app(scope, receive, send)
        assert app.state.gate.count == 0


def test_usage_in_every_chunk(either: Running) -> None:
    body = {
        **CHAT,
        "max_tokens": 12,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    chunks = either.post("/chat/completions", body).events()[:-1]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1


def test_an_error_before_the_beginning_has_a_status(either: Running) -> None:
    for stream in (True, False):
        got = either.post("/chat/completions", {**CHAT, "max_tokens": 5000, "stream": stream})
        assert got.status == 400
        assert got.error["param"] == "max_tokens"
        assert got.error["code"] == "context_length_exceeded"
        assert "`max_tokens`" in got.error["message"]


def test_a_closed_engine_is_503() -> None:
    gate = Gate()
    with running(scripted(gate)) as served:
        wire = served.begin("/completions", {"model": "demo", "prompt": [1], "max_tokens": 9})
        gate.wait_arrived(1)
        assert isinstance(served.llm, AsyncLLM)
        served.llm._thread.stop()  # what closing does first: the next step is not to come
        closing = threading.Thread(target=_close, args=(served,))
        closing.start()
        gate.open()
        got = b""
        while part := wire.recv(10_000):
            got += part
            if b"\r\n\r\n" in got and json_ends(got):
                break
        wire.close()
        closing.join()
        assert b" 503 " in got.splitlines()[0]
        assert served.request("GET", "/health").status == 503
        assert served.request("GET", "/ready").status == 503
        again = served.post("/completions", {"model": "demo", "prompt": [1]})
        assert again.status == 503
        assert again.headers["retry-after"] == "5"


@pytest.mark.gate
def test_an_engine_whose_process_is_gone_is_503() -> None:
    with running(lambda: EngineProcess("demo", num_threads=1)) as served:
        assert served.post("/completions", {**TEXT, "max_tokens": 2}).status == 200
        assert b"vllm:" in served.request("GET", "/metrics").body
        assert isinstance(served.llm, EngineProcess)
        served.llm.kill()
        wait_for(lambda: not served.llm.is_healthy)
        assert served.request("GET", "/health").status == 503
        assert served.request("GET", "/ready").status == 503
        assert served.post("/completions", TEXT).status == 503
        figures = served.request("GET", "/metrics")
        assert (figures.status, figures.body) == (200, b"")


def _close(served: Running) -> None:
    import anyio

    assert isinstance(served.llm, AsyncLLM)
    anyio.run(served.llm.aclose)


def json_ends(got: bytes) -> bool:
    """Tell whether the whole body has arrived."""
    try:
        json.loads(got.partition(b"\r\n\r\n")[2])
    except ValueError:
        return False
    return True
