"""Test operation under load: replicas come and go, versions change, clients leave."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.ray_serve.test_ingress import KINDS, clients_of, kind, read, undisturbed

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen_apps.websocket.client.client import Client
    from tests.apps.ray_serve.cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(1800)]

SCALING = {
    "replicas": 1,
    "max_replicas": 2,
    "target_requests": 4,
    "upscale_seconds": 1,
    "downscale_seconds": 2,
    "drain_seconds": 0.3,
}


class Load:
    """Streams one after the other, as many at a time, until it is stopped."""

    def __init__(self, clients: list[Client], expected: list[Any], width: int) -> None:
        self._clients, self._expected = clients, expected
        self._width = width
        self.wrong: list[Any] = []
        self.done = self.tokens = 0

    def narrow(self, width: int) -> None:
        self._width = width

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for at in range(self._width):
                group.create_task(self._worker(at))

    async def _worker(self, at: int) -> None:
        number = at
        while at < self._width:
            number = (number + 3) % len(KINDS)
            samples, _, is_exact = await read(self._clients[at % len(self._clients)], number)
            if samples != self._expected[number] or not is_exact:
                self.wrong.append((kind(number), samples))
            self.done += 1
            self.tokens += sum(len(sample.token_ids) for sample in samples)


async def until(is_so: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not await asyncio.to_thread(is_so):
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


def _are(cluster: Cluster, count: int) -> bool:
    return cluster.replicas("engine") == count


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


async def rate(load: Load, seconds: float) -> float:
    before, began = load.tokens, time.monotonic()
    await asyncio.sleep(seconds)
    return (load.tokens - before) / (time.monotonic() - began)


def test_replicas_come_with_the_work_and_go_with_it(cluster: Cluster) -> None:
    async def run() -> None:
        expected = await undisturbed()
        await asyncio.to_thread(cluster.deploy, **SCALING)
        assert cluster.replicas("engine") == 1
        async with AsyncExitStack() as stack:
            load = Load(await clients_of(stack, cluster, 4), expected, 12)
            task = asyncio.create_task(load.run())
            began = time.monotonic()
            await until(lambda: cluster.replicas("engine") == 2)
            up = time.monotonic() - began
            await asyncio.sleep(2)
            relieved = await rate(load, 10)
            load.narrow(1)
            began = time.monotonic()
            await until(lambda: cluster.replicas("engine") == 1)
            down = time.monotonic() - began
            load.narrow(0)
            await task
        assert not load.wrong, load.wrong[0]
        say(
            f"1 to 2 after {up:.1f} s ({relieved:.0f} tokens/s with two), "
            f"2 to 1 after {down:.1f} s; {load.done} streams whole"
        )

    asyncio.run(run())


def test_streams_that_are_longer_than_the_drain_go_on_elsewhere(cluster: Cluster) -> None:
    async def run() -> None:
        expected = await undisturbed()
        await asyncio.to_thread(cluster.deploy, replicas=2, drain_seconds=0.1)
        async with AsyncExitStack() as stack:
            clients = await clients_of(stack, cluster, 4)
            for replicas in (1, 2, 1):
                load = Load(clients, expected, 8)
                task = asyncio.create_task(load.run())
                await asyncio.sleep(0.5)
                await asyncio.to_thread(cluster.deploy, replicas=replicas, drain_seconds=0.1)
                await until(partial(_are, cluster, replicas))
                load.narrow(0)
                await task
                assert not load.wrong, load.wrong[0]
                say(f"drained to {replicas}: {load.done} streams whole")

    asyncio.run(run())


def test_a_rolling_update_loses_no_stream(cluster: Cluster) -> None:
    async def run() -> None:
        expected = await undisturbed()
        await asyncio.to_thread(cluster.deploy)
        async with AsyncExitStack() as stack:
            load = Load(await clients_of(stack, cluster, 4), expected, 8)
            task = asyncio.create_task(load.run())
            before = set(cluster.processes("engine")) | set(cluster.processes("ingress"))
            for most in (200, 100):
                await asyncio.sleep(0.5)
                await asyncio.to_thread(cluster.deploy, max_requests=most)
            await until(lambda: cluster.replicas("engine") == 2)
            after = set(cluster.processes("engine")) | set(cluster.processes("ingress"))
            load.narrow(0)
            await task
        assert not load.wrong, load.wrong[0]
        say(f"two updates, {len(before - after)} processes replaced: {load.done} streams whole")

    asyncio.run(run())


async def _leave(cluster: Cluster, client: Client, chooser: random.Random) -> float:
    """Begin a stream, leave it at random; milliseconds until the engine has nothing to do."""
    import httpx
    from ray import serve

    engine = serve.get_deployment_handle("engine", "default")
    long = {"max_tokens": 900, "min_tokens": 890, "stream": True}
    asked = {"model": "demo", "prompt": f"Number {chooser.random()}", **long}

    async def wait_idle() -> None:
        while True:
            figures = await engine.metrics.remote()
            if not figures.requests_running + figures.requests_waiting:
                return

    if chooser.random() < 0.5:
        stream = client.stream("Once", max_new_tokens=900, min_new_tokens=890)
        events = stream.events()
        await anext(events)
        await asyncio.sleep(chooser.uniform(0, 0.1))
        began = time.monotonic()
        await stream.aclose()
        await wait_idle()
        return 1000 * (time.monotonic() - began)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as http:
        async with http.stream("POST", "/v1/completions", json=asked) as reply:
            assert reply.status_code == 200
            lines = reply.aiter_lines()  # dropped, it would close the reply
            line = await anext(lines)
            assert "error" not in line and '"text"' in line, line
            await asyncio.sleep(chooser.uniform(0, 0.1))
        began = time.monotonic()
    await wait_idle()
    return 1000 * (time.monotonic() - began)


@pytest.mark.parametrize("part", range(4))
def test_two_hundred_clients_leave_at_random(cluster: Cluster, part: int) -> None:
    async def run() -> None:
        chooser = random.Random(part)
        await asyncio.to_thread(cluster.deploy, replicas=1)
        async with AsyncExitStack() as stack:
            (client,) = await clients_of(stack, cluster, 1)
            for _ in range(3):
                async with asyncio.timeout(15):
                    await _leave(cluster, client, chooser)
            took = []
            for _ in range(50):
                async with asyncio.timeout(15):
                    took.append(await _leave(cluster, client, chooser))
            took.sort()
        middle, p95 = took[25], took[47]
        say(f"50 clients left: idle after {middle:.0f} ms, p95 {p95:.0f}, most {took[-1]:.0f}")
        assert p95 < 50

    asyncio.run(run())
