"""Measure the cost of a remote stream beside a local one, in the same run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen import AsyncLLM
from tests.apps.ray_serve.cluster import free_port
from tests.apps.ray_serve.test_ingress import clients_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.apps.ray_serve.cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(1800)]

STREAMS, TOKENS, ROUNDS = 16, 300, 8
TICK = os.sysconf("SC_CLK_TCK")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def cpu(pids: list[int]) -> float:
    """Seconds of the CPU that processes have used."""
    total = 0.0
    for pid in pids:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        total += (int(told[11]) + int(told[12])) / TICK
    return total


def memory(pids: list[int]) -> int:
    """Bytes that processes hold."""
    pages = (int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) for pid in pids)
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def proxies() -> list[int]:
    """Numbers of the processes of Serve's proxies."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if (
                folder.name.isdigit()
                and (folder / "cmdline").read_bytes()[:15] == b"ray::ProxyActor"
            ):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def busy() -> float:
    """Seconds of all cores of the machine that were used, by whomever."""
    words = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    user, nice, system, _, _, irq, soft = map(int, words[1:8])
    return (user + nice + system + irq + soft) / TICK


async def drain(llm: Any, number: int) -> int:
    stream = llm.stream(
        f"Number {number} was", max_new_tokens=TOKENS, min_new_tokens=TOKENS, seed=number
    )
    async with stream:
        return sum([len(event.token_ids) async for event in stream.events()])


async def drain_http(url: str, number: int) -> int:
    import httpx

    long = {"max_tokens": TOKENS, "min_tokens": TOKENS, "seed": number, "stream": True}
    asked = {"model": "demo", "prompt": f"Number {number} was", **long}
    asked["stream_options"] = {"include_usage": True}
    count = 0
    async with (
        httpx.AsyncClient(base_url=url, timeout=120) as client,
        client.stream("POST", "/v1/completions", json=asked) as reply,
    ):
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                count = (json.loads(line[6:]).get("usage") or {}).get("completion_tokens", count)
    return count


async def measured(
    one: Callable[[int], Awaitable[int]], pids: list[int], width: int = STREAMS
) -> tuple[float, float]:
    """Tokens a second, and microseconds of these processes a token."""
    before, began = cpu(pids), time.monotonic()
    counts = await asyncio.gather(*(one(number) for number in range(width)))
    took = time.monotonic() - began
    assert sum(counts) == width * TOKENS
    return sum(counts) / took, 1e6 * (cpu(pids) - before) / sum(counts)


async def first(llm: Any, number: int) -> float:
    """Milliseconds to the first token of a stream that is alone."""
    began = time.monotonic()
    async with llm.stream(f"Number {number} was", max_new_tokens=8) as stream:
        await anext(stream.events())
        return 1000 * (time.monotonic() - began)


@contextmanager
def plain_server() -> Iterator[tuple[str, int]]:
    """``asyncgen serve`` with one thread."""
    import httpx

    port = free_port()
    command = [sys.executable, "-m", "asyncgen_apps.cli", "serve", "--threads", "1", "--no-chat"]
    process = subprocess.Popen([*command, "--port", str(port)])
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{url}/health")
                break
            except httpx.TransportError:
                assert time.monotonic() < end and process.poll() is None
                time.sleep(0.2)
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def remote_of(stack: AsyncExitStack) -> Any:
    from ray import serve

    from asyncgen_apps.ray_serve.calls import RayCalls
    from asyncgen_apps.remote import RemoteLLM

    engines, board = (serve.get_deployment_handle(name, "default") for name in ("engine", "board"))
    facts = await engines.facts.remote()
    return await stack.enter_async_context(RemoteLLM(RayCalls(engines, board), facts))


def test_a_handle_beside_one_process(cluster: Cluster) -> None:
    """Two engines behind a handle keep 0.9 of the tokens/s of one process."""

    async def run() -> None:
        cluster.wait("engine", 2)
        engines, me = cluster.processes("engine"), [os.getpid()]
        async with AsyncExitStack() as stack:
            remote = await remote_of(stack)
            local = await stack.enter_async_context(AsyncLLM("demo", num_threads=1))
            sides = (local, me, STREAMS), (local, me, STREAMS // 2), (remote, engines + me, STREAMS)
            told: list[list[tuple[float, float]]] = [[], [], []]
            parts: list[list[float]] = []
            for number in range(ROUNDS + 1):
                for found, (llm, pids, width) in zip(told, sides, strict=True):
                    before, began = [cpu([pid]) for pid in (*engines, *me)], time.monotonic()
                    all_before = busy()
                    one = await measured(partial(drain, llm), pids, width)
                    took, used = time.monotonic() - began, busy() - all_before
                    if number:  # the first warms up
                        found.append(one)
                    if number and llm is remote:
                        spent = [cpu([pid]) for pid in (*engines, *me)]
                        each = [(b - a) / took for a, b in zip(before, spent, strict=True)]
                        parts.append([*each, used / took - sum(each)])
            later = [
                (await first(remote, number)) - (await first(local, number)) for number in range(60)
            ]
        ratios = [b[0] / a[0] for a, b in zip(told[0], told[2], strict=True)]
        added = [b[1] - a[1] for a, b in zip(told[1], told[2], strict=True)]
        rates = [median(one[0] for one in found) for found in told]
        say(
            f"one process {rates[0]:.0f} tokens/s, by a handle {rates[2]:.0f}: "
            f"ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
            f"CPU added {median(added):.0f} us a token ({min(added):.0f} to {max(added):.0f}); "
            f"first token later by {median(later):.1f} ms\n"
            f"one process with half of the streams {rates[1]:.0f} tokens/s; cores in use: "
            + ", ".join(f"{median(one):.2f}" for one in zip(*parts, strict=True))
            + " by the engines, the caller, all else on the machine"
        )
        assert median(ratios) >= 0.9 and median(added) <= 300 and median(later) <= 15

    asyncio.run(run())


def test_http_beside_a_plain_server_and_what_an_ingress_costs(cluster: Cluster) -> None:
    async def run() -> None:
        cluster.wait("engine", 2)
        ingresses, doors = cluster.processes("ingress"), proxies()
        plain, ray, parts = [], [], []
        with plain_server() as (url, pid):
            for number in range(ROUNDS + 1):
                one = await measured(lambda n: drain_http(url, n), [pid])
                before = cpu(ingresses), cpu(doors)
                two = await measured(lambda n: drain_http(cluster.url, n), [])
                spent = cpu(ingresses) - before[0], cpu(doors) - before[1]
                if number:
                    plain.append(one[0])
                    ray.append(two[0])
                    parts.append([1e6 * each / (STREAMS * TOKENS) for each in spent])
        ratios = [b / a for a, b in zip(plain, ray, strict=True)]
        say(
            f"HTTP: plain {median(plain):.0f} tokens/s, Ray {median(ray):.0f}, "
            f"ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
            f"ingress {median(one[0] for one in parts):.0f} us a token, "
            f"proxy {median(one[1] for one in parts):.0f}"
        )
        assert median(ratios) >= 0.8
        async with AsyncExitStack() as stack:
            clients = await clients_of(stack, cluster, 64)
            idle = memory(ingresses), memory(doors)
            before = cpu(ingresses), cpu(doors)
            await asyncio.gather(*(drain(client, at) for at, client in enumerate(clients)))
            spent = cpu(ingresses) - before[0], cpu(doors) - before[1]
            full = memory(ingresses), memory(doors)
            each = [1e6 * one / (64 * TOKENS) for one in spent]
            more = [(b - a) / 64 / 1024 for a, b in zip(idle, full, strict=True)]
        say(
            f"WebSocket, 64 streams: ingress {each[0]:.0f} us a token, proxy {each[1]:.0f}; "
            f"KiB a stream: ingress {more[0]:.0f}, proxy {more[1]:.0f}"
        )

    asyncio.run(run())
