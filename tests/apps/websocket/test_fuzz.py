"""Frames of any kind: to the core, and over real sockets. Nobody crashes, leaks or sticks."""

from __future__ import annotations

import json
import random
from typing import Any

import anyio
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from asyncgen_apps.websocket.core import Channel, CloseConnection, StartRequest, StopRequest
from asyncgen_apps.websocket.frames import encode, read
from asyncgen_apps.websocket.messages import SERVER_MESSAGE
from asyncgen_apps.websocket.replay import Piece
from asyncgen_apps.websocket.resumable_requests import Registry
from asyncgen_apps.websocket.settings import StreamSettings
from tests.apps.websocket.serving import STORY, Served, served
from tests.doubles.engine import no_thread_left

__all__ = ["no_thread_left"]

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, 1e308, "", "a", "b", "x" * 65, "\0", "🦊",
    [], [1], ["a"], {}, {"a": {"a": [1]}}, [[[[[]]]]], "text", "tokens",
    [{"role": "user", "content": "hi"}], {"max_new_tokens": 2}, {"temperature": -1},
    {"n": 3, "do_sample": True, "max_new_tokens": 2}, {"stop": [""]}, {"seed": 1.5},
    {"num_beams": 2, "max_new_tokens": 2}, {"logprobs": True, "max_new_tokens": 2},
)  # fmt: skip
FIELDS = {
    "generate": ("id", "prompt", "messages", "token_ids", "params", "events"),
    "cancel": ("id",),
    "resume": ("id", "resume_token", "after"),
    "ping": ("nonce",),
    "auth": ("token",),
}


def frame(luck: random.Random, tokens: list[str]) -> str | bytes:
    """Something between a good message and noise."""
    dice = luck.random()
    if dice < 0.05:
        return luck.randbytes(luck.randrange(40))
    if dice < 0.1:
        return luck.choice(("", "{", "[]", "null", "[" * 500, '{"type":', "1e999", '"\\ud800"'))
    kind = luck.choice((*FIELDS, *FIELDS, "generate", "generate", "hello", "delta", 7))
    message: dict[str, Any] = {"type": kind}
    for name in FIELDS.get(str(kind), ("id",)):
        if luck.random() < 0.7:
            message[name] = luck.choice(VALUES)
    if luck.random() < 0.5 and kind != "ping":
        message["id"] = luck.choice("abcdefgh")
    if kind == "generate" and luck.random() < 0.5:
        message = {"type": kind, "id": luck.choice("abcdefgh"), "token_ids": [luck.randrange(300)]}
        message["params"] = luck.choice([one for one in VALUES if isinstance(one, dict)])
    if kind == "resume" and tokens and luck.random() < 0.7:
        message |= {"resume_token": luck.choice(tokens), "after": luck.randrange(5)}
    if luck.random() < 0.05:
        message[luck.choice(("extra", "id", "type", "seq"))] = luck.choice(VALUES)
    text = json.dumps(message)
    if luck.random() < 0.05:
        place = luck.randrange(len(text))
        text = text[:place] + luck.choice(("\0", '"', "}", "é", "")) + text[place + 1 :]
    return text


def fuzz_core(count: int, seed: int) -> None:
    """Frames into channels whose engine says a word now and then; all is well at the end."""
    luck = random.Random(seed)
    settings = StreamSettings(max_requests=4, grace_seconds=50, replay_bytes=2000, kept_bytes=9000)
    registry = Registry(settings)
    channels = [Channel(settings, registry) for _ in range(3)]
    running: list[Any] = []
    tokens: list[str] = []
    for now in range(count):
        place = luck.randrange(3)
        channel = channels[place]
        for action in channel.receive(read(frame(luck, tokens)), now):
            if isinstance(action, StartRequest):
                action.answer.accepted(None)
                running.append(action.answer)
                tokens = [*tokens[-20:], action.answer.token]
            elif isinstance(action, StopRequest):
                action.answer.finish(END)
            else:
                assert isinstance(action, CloseConnection)
        for answer in running:
            answer.add(Piece(0, "word "))
            if luck.random() < 0.1:
                answer.finish(END)
        running = [answer for answer in running if answer.end is None]
        if luck.random() < 0.5:
            for message in channel.flush(now):
                SERVER_MESSAGE.validate_json(encode(message))
        if luck.random() < 0.02:
            for action in channel.leave(now, for_good=luck.random() < 0.5):
                assert isinstance(action, StopRequest)
                action.answer.finish(END)
            channels[place] = Channel(settings, registry)
        for answer in registry.expire(now):
            answer.finish(END)
        assert registry.kept_bytes <= settings.kept_bytes
    for channel in channels:
        channel.leave(count, for_good=False)
    for answer in (*running, *registry.expire(count + 1000)):
        answer.finish(END)
    assert (len(registry), registry.num_running, registry.kept_bytes) == (0, 0, 0)


END: dict[str, Any] = {
    "finish_reason": "stop",
    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    "timing": {"queue": 0.0, "first_token": None, "total": 1.0, "tokens_per_second": None},
}


async def fuzz_socket(one: Served, count: int, seed: int) -> None:
    """Frames over a real connection, a new one where it was closed; it answers to the end."""
    luck = random.Random(seed)
    tokens: list[str] = []
    sent = 0
    while sent < count:
        try:
            async with one.client() as client:
                async with anyio.create_task_group() as group:

                    async def listen() -> None:
                        while (message := await client.get()) != {"type": "pong", "nonce": "end"}:
                            if message["type"] == "accepted":
                                tokens[:] = [*tokens[-20:], message["resume_token"]]
                        group.cancel_scope.cancel()

                    group.start_soon(listen)
                    for _ in range(min(100, count - sent)):
                        sent += 1
                        if luck.random() < 0.005:
                            wild = Frame(Opcode.TEXT, luck.randbytes(20), luck.random() < 0.5)
                            client.socket.transport.write(wild.serialize(mask=True, extensions=[]))
                        await client.socket.send(frame(luck, tokens))
                    await client.socket.send('{"type":"ping","nonce":"end"}')
                if luck.random() < 0.5:
                    client.kill()
        except* ConnectionClosed:
            pass


async def fuzz_server(sockets: int, count: int) -> None:
    """Several at once, beside a client that behaves; nothing is left behind."""
    async with served(grace_seconds=0.2, replay_bytes=20_000) as one:
        async with one.client() as good, anyio.create_task_group() as group:
            for seed in range(sockets):
                group.start_soon(fuzz_socket, one, count // sockets, seed)
            for number in range(20):
                await good.begin(str(number))
                assert (await good.rest(str(number)))[0] == STORY
        await one.wait_idle()
        service = one.server.service
        with anyio.fail_after(60):
            while service._streams or service._sessions or len(service.registry):  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert service.registry.kept_bytes == 0


def test_the_core_takes_anything() -> None:
    fuzz_core(1500, seed=7)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_server_takes_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncgen_apps.websocket.connection_server.CLOSE_SECONDS", 0.2)
    await fuzz_server(sockets=3, count=500)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_the_core_takes_anything_for_long() -> None:
    for seed in range(9):
        fuzz_core(10_000, seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_server_takes_anything_for_long() -> None:
    await fuzz_server(sockets=8, count=10_000)
