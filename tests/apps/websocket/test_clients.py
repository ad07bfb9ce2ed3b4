"""Whom a connection belongs to: what is resumed, shared, and asked for stays with its key."""

from __future__ import annotations

import http.client
from typing import Any

import anyio
import anyio.to_thread
import pytest

from asyncgen_apps.serving.origins import LOCAL_HOSTS
from tests.apps.websocket.serving import Client, endless, served
from tests.apps.websocket.wires import handshake
from tests.cases import for_each

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    """The server needs asyncio."""
    return "asyncio"


async def test_stream_is_resumed_under_its_key_alone() -> None:
    async with served(endless(), tokens=("k1", "k2")) as one, one.client("k1") as first:
        token = await first.begin()
        await first.get()
        first.kill()
        async with one.client("k2") as thief, one.client("k1") as owner:
            stolen = await thief.ask("resume", id="b", resume_token=token, after=0)
            assert (stolen["code"], stolen["id"]) == ("resume_unknown", "b")
            guess = await thief.ask("resume", id="b", resume_token="guess", after=0)
            assert guess == stolen
            await owner.send("resume", id="a", resume_token=token, after=0)
            assert (await owner.get())["type"] == "accepted"
            # Also while the owner holds it.
            assert (await thief.ask("resume", id="b", resume_token=token, after=0)) == stolen


async def test_a_key_that_comes_as_a_message_counts_as_well() -> None:
    async with served(endless(), tokens=("k1", "k2")) as one, one.client("k1") as first:
        token = await first.begin()
        async with one.client(greets=False) as late:
            assert (await late.ask("auth", token="k2"))["type"] == "hello"
            # A second key does not make another client of it.
            await late.send("auth", token="k1")
            refused = await late.ask("resume", id="b", resume_token=token, after=0)
            assert refused["code"] == "resume_unknown"


async def test_without_keys_the_token_is_enough() -> None:
    """A phone that changes its network has another address."""
    proxy: dict[str, Any] = {"trusted_proxies": ("127.0.0.1",)}
    async with served(endless(), **proxy) as one:
        async with one.client(headers={"X-Forwarded-For": "203.0.113.1"}) as first:
            token = await first.begin()
            first.kill()
        async with one.client(headers={"X-Forwarded-For": "203.0.113.2"}) as second:
            await second.send("resume", id="a", resume_token=token, after=0)
            assert (await second.get())["type"] == "accepted"


async def cached(client: Client, **params: Any) -> int:
    """Tokens of a prompt that were there already."""
    ids = list(range(1, 120))
    await client.begin(token_ids=ids, params={"max_new_tokens": 2, **params})
    done = (await client.rest())[1]
    return int(done["usage"]["cached_tokens"])


async def test_cached_tokens_tell_nothing_of_other_keys() -> None:
    async with (
        served(endless(), tokens=("k1", "k2")) as one,
        one.client("k1") as first,
        one.client("k2") as second,
    ):
        assert await cached(first) == 0
        assert await cached(second) == 0
        assert await cached(first) > 0
        assert await cached(first, cache_salt="mine") == 0
        assert await cached(second, cache_salt="mine") == 0


async def test_without_keys_all_share() -> None:
    async with served(endless()) as one, one.client() as first, one.client() as second:
        assert await cached(first) == 0
        assert await cached(second) > 0


@for_each(
    ("params", "said"),
    [
        ({"priority": 1}, "--allow-priority"),
        ({"client": "me"}, "client"),
        ({"cache_salt": 7}, ""),
        ({"chat_template_kwargs": {"a": "x" * 4096}}, "at most 4096"),
        ({"chat_template_kwargs": {"a": 1}}, "only messages"),
    ],
)
async def test_parameters_closed_to_clients_are_refused(params: dict[str, Any], said: str) -> None:
    async with served(tokens=("k1",)) as one, one.client("k1") as client:
        error = await client.ask("generate", id="a", token_ids=[1], params=params)
        assert (error["code"], [error["param"]]) == ("invalid_request", list(params))
        assert said in error["message"]


async def test_parts_that_are_no_text_are_named() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "b"}}]
    async with served() as one, one.client() as client:
        said = [{"role": "user", "content": parts[:1]}]
        reply = await client.ask("generate", id="a", messages=said, params={"max_new_tokens": 1})
        assert reply["type"] == "accepted"
    async with served() as one, one.client() as client:
        error = await client.ask("generate", id="b", messages=[{**said[0], "content": parts}])
        assert (error["code"], error["param"]) == ("invalid_request", "messages[0].content[1].type")


async def test_priority_under_a_key_that_may() -> None:
    async with served(tokens=("k1", "k2"), priority_keys=("k2",)) as one:
        for key, kind in (("k1", "error"), ("k2", "accepted")):
            async with one.client(key) as client:
                params = {"priority": 1, "max_new_tokens": 2}
                said = await client.ask("generate", id="a", token_ids=[1], params=params)
                assert said["type"] == kind


async def test_the_port_is_called_by_its_names() -> None:
    async with served(allowed_hosts=LOCAL_HOSTS) as one:
        statuses = {
            path: await anyio.to_thread.run_sync(status, one.server.port, path, "evil.example")
            for path in ("/", "/metrics", "/healthz", "/readyz", "/v1/stream")
        }
        assert statuses == {
            "/": 421, "/metrics": 421, "/healthz": 200, "/readyz": 200, "/v1/stream": 421
        }  # fmt: skip
        assert await anyio.to_thread.run_sync(status, one.server.port, "/", "localhost:1") == 200
        evil = handshake().replace(b"127.0.0.1", b"evil.example")
        async with await anyio.connect_tcp("127.0.0.1", one.server.port) as wire:
            await wire.send(evil)
            assert (await wire.receive()).startswith(b"HTTP/1.1 403 ")
        async with one.client():
            pass


async def test_figures_obey_the_key() -> None:
    async with served(tokens=("k1",)) as one:
        port = one.server.port
        for authorization, expected in ((None, 401), ("Bearer k2", 401), ("Bearer k1", 200)):
            got = await anyio.to_thread.run_sync(status, port, "/metrics", "a", authorization)
            assert got == expected
    async with served(tokens=("k1",), open_metrics=True) as one:
        assert await anyio.to_thread.run_sync(status, one.server.port, "/metrics", "a") == 200


def status(port: int, path: str, host: str, authorization: str | None = None) -> int:
    """Ask for a path; return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {} if authorization is None else {"Authorization": authorization}
    try:
        connection.request("GET", path, headers={"Host": host, **headers})
        return connection.getresponse().status
    finally:
        connection.close()
