"""SGLang's and vLLM's router in front of two servers: what passes through, and who gets what."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import asyncgen_apps
from asyncgen_apps.openai_http.server import LAST_WORDS
from tests.apps.openai_http.routers.fleet import (
    LONG,
    ask,
    begin,
    end_politely,
    fleet,
    program,
    text_of,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.routers.fleet import Fleet

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180)]

PAGE = Path(asyncgen_apps.__file__).with_name("openai_http") / "README.md"
ROUTERS = ["vllm-router", "sglang-router"]
TALE = {"model": "demo", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
TALK = {
    "model": "demo",
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
    "max_tokens": 24,
    "seed": 5,
}
FIGURES = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
]


@pytest.fixture(scope="module", params=ROUTERS)
def turns(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Servers that are chosen in turn."""
    with fleet(request.param, "round_robin") as found:
        yield found


def test_requests_pass_through_the_router_unchanged(turns: Fleet) -> None:
    direct = turns.servers[0].port
    models = json.loads(turns.ask("/v1/models")[1])
    assert [one["id"] for one in models["data"]] == ["demo"]
    for path, body in (("/v1/completions", TALE), ("/v1/chat/completions", TALK)):
        status, whole = turns.ask(path, body)
        assert status == 200, whole
        expected = json.loads(ask(direct, path, body)[1])
        got = json.loads(whole)
        assert got["choices"] == expected["choices"]
        status, streamed = turns.ask(path, {**body, "stream": True})
        assert status == 200
        choice = expected["choices"][0]
        assert text_of(streamed) == choice.get("text", choice.get("message", {}).get("content"))


def test_extras_and_refusals_pass_through(turns: Fleet) -> None:
    body = {**TALE, "regex": "[a-z]{5}", "top_k": 5}
    status, got = turns.ask("/v1/completions", body)
    assert status == 200 and len(json.loads(got)["choices"][0]["text"]) == 5
    status, got = turns.ask("/v1/completions", {**TALE, "unheard_of": 1})
    assert (status, json.loads(got)["error"]["param"]) == (400, "unheard_of")
    status, got = turns.ask("/v1/embeddings", {"model": "demo", "input": "a fox"})
    assert status == 200, got


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_that_leaves_is_noticed_at_its_server(turns: Fleet, streams: bool) -> None:
    body = {**TALE, **LONG, "stream": streams}
    for _ in range(4):
        wire = begin(turns.port, "/v1/completions", body)
        wait_until(lambda: sum(turns.running) == 1, "it runs")
        if streams:
            wire.getresponse().read(200)
        wire.close()
        seconds = wait_until(lambda: sum(turns.running) == 0, "it was cancelled", 5.0)
        assert seconds < 1.0


def test_requests_spread(turns: Fleet) -> None:
    before = [one.served for one in turns.servers]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: turns.ask("/v1/completions", TALE), range(24)))
    assert {status for status, _ in replies} == {200}
    assert len({json.loads(body)["choices"][0]["text"] for _, body in replies}) == 1
    shares = [one.served - was for one, was in zip(turns.servers, before, strict=True)]
    assert sum(shares) == 24 and min(shares) >= 8, shares


def test_figures_and_names(turns: Fleet) -> None:
    """Routers and gateways find the metrics and names that they read."""
    for one in turns.servers:
        for name in FIGURES:
            one.figure(name)
        assert ask(one.port, "/v1/models", host="10.1.2.3:8000")[0] == 200
        assert ask(one.port, "/v1/models", host="model.example.org")[0] == 200
        assert ask(one.port, "/v1/models", host="model.example.org", key=None)[0] == 401
        assert ask(one.port, "/ready", host="10.1.2.3:8000", key=None)[0] == 200


@pytest.mark.parametrize("name", ROUTERS)
def test_a_prefix_stays_with_its_server(name: str) -> None:
    with fleet(name, "cache_aware") as found:
        tales = ["The fox slept by the sea. " * 8, "A bird sang in the old tree. " * 8]
        for tale in tales:
            before = [one.served for one in found.servers]
            hits = sum(one.figure("vllm:prefix_cache_hits_total") for one in found.servers)
            for number in range(6):
                body = {**TALE, "prompt": f"{tale}{number}", "max_tokens": 4}
                assert found.ask("/v1/completions", body)[0] == 200
            shares = [one.served - was for one, was in zip(found.servers, before, strict=True)]
            assert sorted(shares) == [0, 6], shares
            now = sum(one.figure("vllm:prefix_cache_hits_total") for one in found.servers)
            assert now - hits >= 5 * 16


class Crowd:
    """Clients that ask one after the other, as long as the block runs."""

    def __init__(self, found: Fleet, clients: int = 3) -> None:
        self._found = found
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask_on) for _ in range(clients)]
        self.replies: list[tuple[float, int, bytes]] = []

    def _ask_on(self) -> None:
        while not self._is_over.is_set():
            began = time.monotonic()
            try:
                status, body = self._found.ask("/v1/completions", {**TALE, "max_tokens": 8})
            except (OSError, HTTPException) as error:
                status, body = 0, repr(error).encode()
            self.replies.append((began, status, body))

    def __enter__(self) -> Crowd:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for one in self._threads:
            one.join()


def _streams(found: Fleet, count: int, pool: ThreadPoolExecutor) -> list[Any]:
    """Long streams that have begun, on both servers."""
    body = {**TALE, **LONG, "stream": True}
    begun = [pool.submit(found.ask, "/v1/completions", body) for _ in range(count)]
    wait_until(lambda: sum(found.running) >= count and min(found.running) > 0, "they run")
    return begun


@pytest.mark.parametrize("name", ROUTERS)
def test_a_server_that_drains_loses_nothing(name: str) -> None:
    with fleet(name, "round_robin") as found, ThreadPoolExecutor(4) as pool:
        leaving, staying = found.servers
        expected = text_of(
            ask(staying.port, "/v1/completions", {**TALE, **LONG, "stream": True})[1]
        )
        streams = _streams(found, 4, pool)
        with Crowd(found) as crowd:
            time.sleep(0.5)
            end_politely(leaving)
            assert leaving.process.wait(60) == 0
            before, asked = staying.served, len(crowd.replies)
            wait_until(lambda: len(crowd.replies) > asked + 10, "the other one answers")
            assert staying.served - before >= 8
        assert [reply for reply in crowd.replies if reply[1] != 200] == []
        texts = [text_of(one.result()[1]) for one in streams]
    assert texts == [expected] * 4


@pytest.mark.parametrize("name", ROUTERS)
def test_a_killed_server_is_taken_out(name: str) -> None:
    with fleet(name, "round_robin") as found, ThreadPoolExecutor(4) as pool:
        killed, staying = found.servers
        streams = _streams(found, 4, pool)
        alive = staying.running
        killed.process.kill()
        killed.process.wait()
        with Crowd(found) as crowd:
            wait_until(lambda: len(crowd.replies) > 20, "the other one answers")
        failed = [reply for reply in crowd.replies if reply[1] != 200]
        assert failed == []
        whole = 0
        for one in streams:
            try:
                text_of(one.result()[1])
                whole += 1
            except (AssertionError, OSError, HTTPException):
                continue  # it was on the one that is gone
        assert whole >= alive


def test_the_example_for_kubernetes(tmp_path: Path) -> None:
    """Every document of it keeps to the schema of its kind; its times fit into each other."""
    [example] = re.findall(
        r"^```yaml\n(apiVersion.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    place = tmp_path / "example.yaml"
    place.write_text(example)
    checked = subprocess.run(
        [str(program("kubernetes-validate")), "--strict", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    drain, notice = (
        int(re.findall(rf'--{name}, "(\d+)"', example)[0]) for name in ("drain", "notice")
    )
    [grace] = re.findall(r"terminationGracePeriodSeconds: (\d+)", example)
    assert notice + drain + 2 * LAST_WORDS < int(grace)
