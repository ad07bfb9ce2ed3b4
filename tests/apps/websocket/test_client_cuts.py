"""The connection is cut at random, against the real server: nothing twice, nothing missing."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen_apps.websocket.client.client import Client, Patience, connect
from tests.apps.websocket.cutting import CuttingProxy
from tests.apps.websocket.engine import RealServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen import Completion

pytestmark = pytest.mark.anyio

PATIENCE = Patience(first_delay=0.01, longest_delay=0.1)


@dataclass(frozen=True)
class Ask:
    """Request of one stream."""

    prompt: str
    params: dict[str, Any]

    @classmethod
    def number(cls, index: int, tokens: int) -> Ask:
        """One of many that differ: every second one samples."""
        prompt = f"Once upon a time there were {index + 2}"
        length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
        sampled = {"seed": index, "temperature": 1.1} if index % 2 else {"do_sample": False}
        return cls(prompt, {**length, **sampled})


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    with RealServer() as running:
        yield running


async def read(client: Client, ask: Ask, as_text: bool) -> tuple[str, tuple[int, ...], Completion]:
    """Read a stream; what the reader saw, and the result."""
    stream = client.stream(ask.prompt, **ask.params)
    if as_text:
        text = "".join([piece async for piece in stream])
        return text, stream.result.token_ids, stream.result
    events = [event async for event in stream.events()]
    ids = tuple(one for event in events for one in event.token_ids)
    return "".join(event.text for event in events), ids, stream.result


async def cut_and_compare(
    server: RealServer, *, seed: int, cuts: int, streams: int, tokens: int, bytes_between: int
) -> int:
    """Read rounds of streams while the connection is cut, until there were enough cuts.

    ``bytes_between`` is the median of what a connection carries, the handshake included.
    """
    dice = random.Random(seed)
    asks = [Ask.number(index, tokens) for index in range(streams)]
    uncut = [server.generate(ask.prompt, **ask.params) for ask in asks]
    wrong: list[str] = []

    def budget(_: int) -> int:
        return int(dice.lognormvariate(math.log(bytes_between), 1.2))

    with CuttingProxy(server.port, budget) as proxy:
        async with connect_through(proxy) as client:

            async def check(index: int) -> None:
                text, ids, result = await read(client, asks[index], as_text=index % 3 == 0)
                want = uncut[index]
                got = (text, result.text, ids, result.token_ids, result.finish_reason)
                if got != (want.text, want.text, want.token_ids, want.token_ids, "length"):
                    wrong.append(f"{index}: {got} and not {want}")
                if result.usage.completion_tokens != tokens:
                    wrong.append(f"{index}: {result.usage}")

            while proxy.cuts < cuts and not wrong:
                async with anyio.create_task_group() as tasks:
                    for index in range(streams):
                        tasks.start_soon(check, index)
        assert not wrong
        return proxy.cuts


def connect_through(proxy: CuttingProxy):  # type: ignore[no-untyped-def]
    return connect(proxy.url, patience=PATIENCE)


async def test_a_few_cuts(server: RealServer, anyio_backend: str) -> None:
    with anyio.fail_after(60):
        made = await cut_and_compare(
            server, seed=1, cuts=10, streams=4, tokens=60, bytes_between=2000
        )
    assert made >= 10


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_200_cuts_over_20_streams(
    server: RealServer, anyio_backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with anyio.fail_after(880):
        made = await cut_and_compare(
            server, seed=7, cuts=200, streams=20, tokens=200, bytes_between=5000
        )
    with capsys.disabled():
        print(f"\n{anyio_backend}: {made} cuts over 20 streams, every text as uncut")  # noqa: T201
