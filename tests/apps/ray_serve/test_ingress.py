"""Streams over WebSocket through a cluster of Ray: they outlive the ingress that holds them."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen import AsyncLLM
from asyncgen_apps.websocket import connect
from asyncgen_apps.websocket.client.client import Patience

if TYPE_CHECKING:
    from asyncgen_apps.websocket.client.client import Client
    from tests.apps.ray_serve.cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1800)]

PATIENCE = Patience(first_delay=0.05, longest_delay=0.5, outage=120.0)
PROMPT = "Once upon a time"
LONG = {"max_new_tokens": 400, "min_new_tokens": 380}
WORDS = "( [a-z]{1,9},?){240}"
"""Text of a grammar that is long enough to be interrupted."""

KINDS: list[dict[str, Any]] = [
    {"do_sample": False},
    {"temperature": 1.1, "seed": 5},
    {"seed": 3, "frequency_penalty": 0.7, "presence_penalty": 0.2},
    {"do_sample": False, "stop": ["sea"], "min_new_tokens": 0},
    {"seed": 9, "n": 3},
    {"seed": 12, "top_logprobs": 2},
    {"seed": 8, "repetition_penalty": 1.3, "top_p": 0.9},
    {"seed": 11, "min_p": 0.05},
    {"do_sample": False, "regex": WORDS},
    {"seed": 4, "temperature": 1.1, "regex": WORDS},
]


def kind(number: int) -> dict[str, Any]:
    return {**LONG, **KINDS[number % len(KINDS)]}


async def undisturbed() -> list[Any]:
    async with AsyncLLM("demo", num_threads=1) as llm:
        found = [await llm.generate(PROMPT, **kind(number)) for number in range(len(KINDS))]
    return [one.samples for one in found]


async def read(client: Client, number: int) -> tuple[Any, float, bool]:
    """The samples, the longest pause in seconds, and whether the text is promised to be whole."""
    stream = client.stream(PROMPT, **kind(number))
    last, pause = time.monotonic(), 0.0
    async for _ in stream.events():
        now = time.monotonic()
        last, pause = now, max(pause, now - last)
    return stream.result.samples, pause, stream.is_exact


async def clients_of(stack: AsyncExitStack, cluster: Cluster, count: int) -> list[Client]:
    url = cluster.url.replace("http", "ws", 1)
    made = [connect(f"{url}/v1/stream", patience=PATIENCE) for _ in range(count)]
    return [await stack.enter_async_context(one) for one in made]


async def kills(cluster: Cluster, count: int, seed: int = 6) -> tuple[int, list[float]]:
    """Kill ingresses at random moments, eight streams under way; how many, and the pauses."""
    expected = await undisturbed()
    chooser = random.Random(seed)
    pauses: list[float] = []
    async with AsyncExitStack() as stack:
        clients = await clients_of(stack, cluster, 4)
        for _ in range(count):
            numbers = [chooser.randrange(len(KINDS)) for _ in range(8)]
            streams = [
                asyncio.ensure_future(read(clients[at % 4], number))
                for at, number in enumerate(numbers)
            ]
            await asyncio.sleep(chooser.uniform(0.05, 0.6))
            await asyncio.to_thread(cluster.wait_processes, "ingress", 1)
            cluster.kill("ingress", chooser)
            for number, told in zip(numbers, await asyncio.gather(*streams), strict=True):
                assert told[0] == expected[number], kind(number)
                assert told[2]
                pauses.append(told[1])
    return count, sorted(pauses)


def say(what: str, done: int, pauses: list[float]) -> None:
    middle, p95 = (pauses[int(share * len(pauses))] for share in (0.5, 0.95))
    told = f"longest pause: median {middle:.2f} s, p95 {p95:.2f} s, most {pauses[-1]:.2f} s"
    sys.stdout.write(f"{done} {what}, {len(pauses)} streams; {told}\n")


def test_streams_outlive_a_killed_ingress(cluster: Cluster) -> None:
    cluster.wait("engine", 2)
    say("kills of an ingress", *asyncio.run(kills(cluster, 3)))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(5))
def test_fifty_kills_of_an_ingress(cluster: Cluster, part: int) -> None:
    cluster.deploy(ingresses=3)
    cluster.wait("engine", 2)
    say("kills of an ingress", *asyncio.run(kills(cluster, 10, seed=part)))
