"""A stream that loses its server goes on at another one, and its text is that of one server."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from asyncgen import AsyncLLM, InvalidRequestError
from asyncgen_apps.websocket import connect, serve_websocket
from asyncgen_apps.websocket.client.client import ConnectionLostError, Patience
from asyncgen_apps.websocket.settings import StreamSettings
from tests.apps.websocket.cutting import CuttingProxy
from tests.doubles.models import Gate, TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen import Completion
    from asyncgen_apps.websocket.client.client import RemoteStream

pytestmark = pytest.mark.anyio

PROMPT = "Once upon a time"
CASES: list[dict[str, Any]] = [
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.9, "seed": 4, "n": 3, "top_logprobs": 2},
    {"do_sample": True, "seed": 5, "frequency_penalty": 1.0, "stop": ["the li", "!"]},
    {"num_beams": 3, "do_sample": False},  # cannot go on behind tokens: begun anew
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Pair:
    """Two servers, each behind a wire, of which one can be reached at a time."""

    def __init__(self, wires: list[CuttingProxy], llms: list[AsyncLLM]) -> None:
        self.wires, self.llms = wires, llms
        self.at = 0
        wires[1].refuse = True

    def lose(self) -> None:
        """Lose the server that is reached; the other is there from now on."""
        here, there = self.wires[self.at], self.wires[1 - self.at]
        there.refuse, here.refuse = False, True
        here.cut()
        self.at = 1 - self.at

    @property
    def urls(self) -> list[str]:
        return [wire.url for wire in self.wires]


@contextmanager
def wires(ports: list[int]) -> Iterator[list[CuttingProxy]]:
    with ExitStack() as stack:
        yield [stack.enter_context(CuttingProxy(port)) for port in ports]


async def pair_of(stack: AsyncExitStack, sources: list[Any], **options: Any) -> Pair:
    llms, ports = [], []
    for source in sources:
        llm = await stack.enter_async_context(AsyncLLM(source, **options))
        server = await stack.enter_async_context(serve_websocket(llm, settings=StreamSettings()))
        llms.append(llm)
        ports.append(server.port)
    return Pair(stack.enter_context(wires(ports)), llms)


async def read_and_lose(stream: RemoteStream, pair: Pair, rng: random.Random) -> Completion:
    """Read to the end; the server is lost again and again."""
    until = rng.randint(1, 6)
    async for event in stream.events():
        until -= 1
        if not until and event.finish_reason is None:
            pair.lose()
            until = rng.randint(1, 12)
    return stream.result


@pytest.mark.gate
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
async def test_the_joined_text_is_that_of_one_server(case: dict[str, Any]) -> None:
    async with AsyncExitStack() as stack:
        pair = await pair_of(stack, ["demo", "demo"])
        given = {"max_new_tokens": 40, **case}
        whole = await pair.llms[0].generate(PROMPT, **given)
        patience = Patience(first_delay=0.01, longest_delay=0.05)
        client = await stack.enter_async_context(connect(pair.urls, patience=patience))
        for seed in range(2):
            stream = client.stream(PROMPT, **given)
            with anyio.fail_after(60):
                found = await read_and_lose(stream, pair, random.Random(seed))
            assert found.samples == whole.samples
            assert found.usage.completion_tokens == whole.usage.completion_tokens
            is_promised = pair.llms[0].fingerprint is not None and "num_beams" not in case
            assert stream.is_exact == is_promised
        assert sum(wire.connections for wire in pair.wires) > 2


async def test_a_seed_is_drawn_where_none_was_given() -> None:
    async with AsyncExitStack() as stack:
        pair = await pair_of(stack, ["demo", "demo"])
        client = await stack.enter_async_context(connect(pair.urls))
        sent: list[Any] = []
        stream = client.stream(PROMPT, temperature=1.2, max_new_tokens=30)
        sent.append(stream._request.params["seed"])
        found = await read_and_lose(stream, pair, random.Random(0))
        whole = await pair.llms[1].generate(
            PROMPT, temperature=1.2, max_new_tokens=30, seed=sent[0]
        )
        assert found.samples == whole.samples


async def test_another_model_resumes_and_reports_the_change() -> None:
    models = [TableModel(seed=seed, context_length=4096) for seed in (1, 2)]
    async with AsyncExitStack() as stack:
        pair = await pair_of(stack, models, tokenizer=byte_tokenizer())
        client = await stack.enter_async_context(connect(pair.urls))
        stream = client.stream(PROMPT, max_new_tokens=2000, seed=1)
        count = 0
        async for _ in stream.events():
            count += 1
            if count == 2:
                assert stream.is_exact
                pair.lose()
        assert stream.result.usage.completion_tokens == len(stream.result.token_ids) == 2000
        assert not stream.is_exact


async def test_a_server_that_leaves_hands_its_streams_over() -> None:
    gate = Gate()
    models = [TableModel(script="abc" * 30, prompt_length=2, hook=hook) for hook in (gate, None)]
    async with AsyncExitStack() as stack:
        tokenizer = byte_tokenizer()
        llms = [
            await stack.enter_async_context(AsyncLLM(model, tokenizer=tokenizer))
            for model in models
        ]
        leaving, staying = [
            await stack.enter_async_context(serve_websocket(llm, settings=StreamSettings()))
            for llm in llms
        ]
        client = await stack.enter_async_context(connect([leaving.url, staying.url]))
        stream = client.stream([1, 2])
        gate.allow(3)
        text = await anext(stream)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leaving.drain, 0)
            gate.open()
            async for more in stream:
                text += more
        assert text == "abc" * 30
        assert stream.result.finish_reason == "stop"


async def test_held_back_text_is_sent_once_after_a_move() -> None:
    script = "ab caf\u00e9 au lait"
    gate = Gate()
    models = [TableModel(script=script, prompt_length=2, hook=hook) for hook in (gate, None)]
    async with AsyncExitStack() as stack:
        tokenizer = byte_tokenizer()
        llms = [
            await stack.enter_async_context(AsyncLLM(model, tokenizer=tokenizer))
            for model in models
        ]
        leaving, staying = [
            await stack.enter_async_context(serve_websocket(llm, settings=StreamSettings()))
            for llm in llms
        ]
        client = await stack.enter_async_context(connect([leaving.url, staying.url]))
        stream = client.stream([1, 2], stop=["caf\u00e9 noir"])
        gate.allow(6)  # "ab caf", of which "caf" may become the stop string
        ids: list[int] = []
        text = ""
        async with anyio.create_task_group() as tasks:
            async for event in stream.events():
                ids += event.token_ids
                text += event.text
                if len(ids) == 6 and not gate._is_open:
                    tasks.start_soon(leaving.drain, 0)
                    await anyio.wait_all_tasks_blocked()  # it has asked for an end
                    gate.open()
        assert bytes(ids[:-1]).decode() == text == stream.result.text == script


@pytest.mark.parametrize("urls", [[], ["http://x"], ["ws://127.0.0.1:1", "ws://"]])
async def test_addresses_are_checked(urls: list[str]) -> None:
    with pytest.raises(InvalidRequestError, match="`url`"):
        async with connect(urls):
            pass


async def test_all_are_tried_once_at_the_beginning() -> None:
    async with AsyncExitStack() as stack:
        llm = await stack.enter_async_context(AsyncLLM("demo"))
        server = await stack.enter_async_context(serve_websocket(llm))
        async with connect(["ws://127.0.0.1:1", server.url]) as client:
            assert (await client.generate(PROMPT, max_new_tokens=3)).text
    with pytest.raises(ConnectionLostError):
        async with connect(["ws://127.0.0.1:1", "ws://127.0.0.1:1/v1/stream"]):
            pass


class Process:
    """A server of the bundled model, on a port of its own, that is killed and started again."""

    def __init__(self) -> None:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}/v1/stream"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "asyncgen_apps.cli", "serve-ws", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        assert any(line.startswith("serving") for line in self.process.stderr)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)


@pytest.mark.soak
@pytest.mark.timeout(2400)
async def test_50_kills_lose_and_double_nothing() -> None:
    rng, kills, streams = random.Random(5), 0, 0
    servers = [Process(), Process()]
    try:
        async with AsyncLLM("demo") as llm, connect([one.url for one in servers]) as client:
            while kills < 50:
                streams += 1
                given: dict[str, Any] = {
                    "seed": streams,
                    "temperature": rng.choice([0.8, 1.2]),
                    "n": rng.choice([1, 1, 2]),
                    "frequency_penalty": rng.choice([0.0, 0.5]),
                    "max_new_tokens": 900,
                    "min_new_tokens": 400,
                }
                stream = client.stream(PROMPT, **given)
                until = rng.randint(5, 120)
                async for event in stream.events():
                    until -= 1
                    if not until and event.finish_reason is None:
                        # The one that speaks now; it is back before the other is killed.
                        lost = servers[client._link._index]
                        await anyio.to_thread.run_sync(lost.kill)
                        await anyio.to_thread.run_sync(lost.start)
                        kills, until = kills + 1, rng.randint(5, 120)
                assert stream.is_exact
                assert stream.result.samples == (await llm.generate(PROMPT, **given)).samples
    finally:
        for one in servers:
            one.kill()
