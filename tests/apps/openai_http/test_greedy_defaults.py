"""Servers answer greedily where the model's own defaults have a temperature of 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from asyncgen import AsyncLLM
from tests.apps.openai_http.running import running
from tests.apps.websocket.serving import served
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.running import Running

TURN = {"role": "user", "content": "Hi"}
SHORT = {"model": "demo", "max_tokens": 6}


def cold() -> TableModel:
    return TableModel(temperature=0.0, top_p=0.5)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(lambda: AsyncLLM(cold(), tokenizer=byte_tokenizer())) as found:
        yield found


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"n": 2, "temperature": 0}, {"top_p": 0.9}])
@pytest.mark.parametrize("path", ["/completions", "/chat/completions"])
def test_default_temperature_of_0_is_greedy_over_http(
    server: Running, path: str, more: dict[str, Any]
) -> None:
    asked = {**SHORT, "messages": [TURN]} if "chat" in path else {**SHORT, "prompt": "Hi"}
    (greedy,) = server.post(path, {**asked, "temperature": 0}).json()["choices"]
    found = server.post(path, {**asked, **more}).json()["choices"]
    assert [{**choice, "index": 0} for choice in found] == [greedy] * more.get("n", 1)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_default_temperature_of_0_is_greedy_over_a_websocket() -> None:
    async with served(cold()) as found, found.client() as client:
        texts = []
        for more in ({}, {"temperature": 0}, {"top_p": 0.9}):
            await client.begin(params={"max_new_tokens": 6, **more})
            texts.append((await client.rest())[0])
        assert texts[0] and len(set(texts)) == 1
