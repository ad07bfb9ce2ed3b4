"""Leaving a loop is leaving the stream, however the loop is left."""

from __future__ import annotations

import gc

import pytest

from streamers.reader import Reader

pytestmark = pytest.mark.anyio


def reader(items: list[str], said: list[str]) -> Reader[str]:
    """Reads these items, and writes down how it is left."""

    async def read() -> str:
        if not items:
            raise StopAsyncIteration
        return items.pop(0)

    return Reader(read, lambda: said.append("left"), lambda: said.append("abandoned"))


async def test_it_gives_what_is_read_until_the_end() -> None:
    assert [item async for item in reader(["a", "b"], [])] == ["a", "b"]


async def test_a_broken_loop_abandons_the_stream() -> None:
    said: list[str] = []
    async for _ in reader(["a", "b"], said):
        break
    gc.collect()
    assert said == ["abandoned"]


async def test_closing_leaves_at_once() -> None:
    said: list[str] = []
    one = reader(["a"], said)
    await one.aclose()
    assert said == ["left"]
