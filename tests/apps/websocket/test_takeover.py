"""A request whose server is gone is taken up by another that shares its secret, and stays whole."""

from __future__ import annotations

import json
import random
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen import AsyncLLM
from asyncgen_apps.websocket.client.params import wire_params, wire_prompt
from asyncgen_apps.websocket.client.request import Phase, Request
from asyncgen_apps.websocket.client.request_tracker import RequestTracker, read_message
from asyncgen_apps.websocket.messages import Hello
from asyncgen_apps.websocket.service import StreamService
from asyncgen_apps.websocket.settings import StreamSettings
from tests.doubles.models import Gate, TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from asyncgen import Completion
    from asyncgen_apps.websocket.session import Session

pytestmark = pytest.mark.anyio

SECRET = "known to all of these servers"
PROMPT = "Once upon a time"
CHAT = [{"role": "user", "content": "Tell me about the sea."}]
SHAPE = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
CASES: list[tuple[Any, dict[str, Any]]] = [
    (PROMPT, {"do_sample": False}),
    (CHAT, {"temperature": 1.1}),
    (PROMPT, {"seed": 3, "repetition_penalty": 1.3, "frequency_penalty": 0.6}),
    (PROMPT, {"do_sample": True, "seed": 5, "stop": ["the li", "!"]}),
    (PROMPT, {"seed": 4, "n": 3, "top_logprobs": 2}),
    ([5, 6, 7], {"seed": 8, "json_schema": SHAPE}),
    (PROMPT, {"num_beams": 3, "do_sample": False}),  # begun anew
    (PROMPT, {"seed": 9, "generated_ids": [7, 8, 9]}),
    (PROMPT, {"seed": 2, "prompt_logprobs": 1}),
]


class Servers:
    """Services over one engine, one after the other; only the secret is common to them."""

    def __init__(self, llm: AsyncLLM, **settings: Any) -> None:
        self.llm = llm
        self.settings = StreamSettings(**{"resume_secret": SECRET, **settings})
        self.number = 0

    @asynccontextmanager
    async def next(self) -> AsyncIterator[Session]:
        self.number += 1
        async with StreamService(self.llm, self.settings) as service:
            session = service.open(authorization=None, origin=None, host=None)
            yield session
            session.bind(lambda: None, lambda: None)
            session.leave(None)


async def read(servers: Servers, request: Request, lives: Any) -> Completion:
    """Read to the end; each server is killed after so many messages."""
    tracker = RequestTracker()
    tracker.update(request)
    while request.phase is not Phase.ENDED:
        left = lives()
        async with servers.next() as session:
            await _talk(tracker, request, session, left)
        tracker.disconnected()
    if request.failure is not None:
        raise request.failure
    return request.build_result()


async def _talk(
    tracker: RequestTracker, request: Request, session: Session, left: int | None
) -> None:
    news = anyio.Event()

    def ring() -> None:
        news.set()

    session.bind(ring, ring)
    while True:
        for frame in session.take():
            if left == 0:
                return
            left = None if left is None else left - 1
            message = read_message(frame.decode())
            assert message is not None
            if isinstance(message, Hello):
                frames = tracker.connected(message)
            else:
                frames = tracker.receive(message)
            for one in frames:
                session.receive(one)
        if request.phase is Phase.ENDED:
            return
        with anyio.fail_after(60):
            await news.wait()
        news = anyio.Event()


async def check(llm: AsyncLLM, prompt: Any, params: dict[str, Any], chooser: random.Random) -> int:
    """Read one answer over servers that are killed; returns how many there were."""
    servers = Servers(llm)
    given = {"max_new_tokens": 16, **params}
    request = Request(wire_prompt(prompt), wire_params(given), lambda: 0.0)
    found = await read(servers, request, lambda: chooser.choice([None, *range(1, 14)]))
    seed = {} if request._seed is None or "seed" in given else {"seed": request._seed}
    whole = await llm.generate(prompt, **{**given, **seed})
    # What the text means is for who has the engine.
    expected = [replace(one, parsed=None, parse_error=None) for one in whole.samples]
    assert list(found.samples) == expected, (prompt, params)
    assert found.prompt_logprobs == whole.prompt_logprobs
    assert found.usage.completion_tokens == whole.usage.completion_tokens
    texts: dict[int, str] = {}
    for event in request.events:
        texts[event.index] = texts.get(event.index, "") + event.text
    assert texts == {sample.index: sample.text for sample in whole.samples}
    if llm.fingerprint is not None and "num_beams" not in params and "generated_ids" not in params:
        assert request.exact
    return servers.number


async def test_text_is_complete_after_repeated_server_kills() -> None:
    async with AsyncLLM("demo", num_threads=1) as llm:
        servers = 0
        for number in (3, 4, 6, 8):
            servers += await check(llm, *CASES[number], random.Random(number))
        assert servers > 6


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_fifty_kills_at_random_moments() -> None:
    async with AsyncLLM("demo", num_threads=1) as llm:
        killed = number = 0
        while killed < 50 * len(CASES):
            prompt, params = CASES[number % len(CASES)]
            killed += await check(llm, prompt, params, random.Random(100 + number)) - 1
            number += 1


class Told:
    """A server whose client is this test."""

    def __init__(self, service: StreamService, key: str | None = None) -> None:
        self._news = anyio.Event()
        authorization = None if key is None else f"Bearer {key}"
        self.session = service.open(authorization=authorization, origin=None, host=None)
        self.session.bind(lambda: self._news.set(), lambda: None)
        self.read: list[dict[str, Any]] = []

    def say(self, kind: str, **fields: Any) -> None:
        self.session.receive(json.dumps({"type": kind, "id": "a", **fields}))

    async def get(self, *kinds: str) -> dict[str, Any]:
        """The next message of one of these kinds."""
        with anyio.fail_after(30):
            while True:
                self.read += [json.loads(frame) for frame in self.session.take()]
                while self.read:
                    message = self.read.pop(0)
                    if message["type"] in kinds:
                        return message
                await self._news.wait()
                self._news = anyio.Event()


ASKED = {"prompt": "x", "params": {"max_new_tokens": 6, "seed": 1}, "events": "tokens"}


@asynccontextmanager
async def service(llm: AsyncLLM, **settings: Any) -> AsyncIterator[StreamService]:
    given = StreamSettings(**{"resume_secret": SECRET, **settings})
    async with StreamService(llm, given) as found:
        yield found
        for session in tuple(found._sessions):
            session.leave(None)


async def begin(llm: AsyncLLM, key: str | None = None, **settings: Any) -> tuple[str, list[int]]:
    """A token of a server that is gone, and the ids of the whole answer."""
    async with service(llm, **settings) as first:
        told = Told(first, key)
        told.say("generate", **ASKED)
        token = (await told.get("accepted"))["resume_token"]
        ids: list[int] = []
        while (message := await told.get("delta", "done"))["type"] == "delta":
            ids += message["token_ids"]
        return token, ids


def again(token: str, ids: list[int], **changed: Any) -> dict[str, Any]:
    fields = {"request": ASKED, "generated_ids": [ids], "positions": [len(ids)], "after": 1}
    return {"resume_token": token, **fields, **changed}


async def test_mismatched_resume_is_refused_with_code() -> None:
    async with AsyncLLM(TableModel(seed=1), tokenizer=byte_tokenizer()) as llm:
        token, ids = await begin(llm)
        first = ids[:2]
        other = {**ASKED, "params": {"max_new_tokens": 7, "seed": 1}}
        flipped = token[:30] + ("A" if token[30] != "A" else "B") + token[31:]
        refused: list[tuple[dict[str, Any], str, str | None]] = [
            (again(token, first, request=other), "resume_changed", None),
            (again(token, first, request={**ASKED, "prompt": "y"}), "resume_changed", None),
            (again(flipped, first), "resume_unknown", None),
            (again("no token", first), "resume_unknown", None),
            (again("\u00e4", first), "resume_unknown", None),
            (again(token, first, positions=[3]), "invalid_request", "positions"),
            (again(token, first, generated_ids=[[], []]), "invalid_request", "generated_ids"),
            (again(token, [99_999, 1]), "invalid_request", "generated_ids"),
            (again(token, [*ids, *ids]), "invalid_request", "generated_ids"),
            (again(token, first, positions=None), "invalid_message", None),
        ]
        async with service(llm) as second:
            told = Told(second)
            for fields, code, param in refused:
                told.say("resume", **fields)
                error = await told.get("error", "accepted")
                assert (error["code"], error.get("param")) == (code, param), (fields, error)
            assert not second._streams and not llm.metrics().requests_running
            told.say("resume", **again(token, first))
            accepted = await told.get("accepted")
            assert accepted["resume_token"] != token and accepted["seed"] == 1
            rest, seq = [], 1
            while (message := await told.get("delta", "done"))["type"] == "delta":
                assert message.get("first_seq", message["seq"]) == seq + 1
                seq = message["seq"]
                rest += message["token_ids"]
            assert [*first, *rest] == ids and message["usage"]["completion_tokens"] == 6
        async with service(llm, resume_secret="that of some other server") as foreign:
            told = Told(foreign)
            told.say("resume", **again(token, first))
            assert (await told.get("error"))["code"] == "resume_unknown"
        async with service(llm, resume_seconds=0.001) as late:
            told = Told(late)
            told.say("resume", **again(token, first))
            assert (await told.get("error"))["code"] == "resume_expired"


async def test_a_token_is_good_under_its_key_alone() -> None:
    keys = {"tokens": ("mine", "yours")}
    async with AsyncLLM(TableModel(seed=1), tokenizer=byte_tokenizer()) as llm:
        token, ids = await begin(llm, "mine", **keys)
        async with service(llm, **keys) as second:
            told = Told(second, "yours")
            told.say("resume", **again(token, ids[:2]))
            assert (await told.get("error"))["code"] == "resume_unknown"
            told = Told(second, "mine")
            told.say("resume", **again(token, ids[:2]))
            assert (await told.get("accepted", "error"))["type"] == "accepted"
        async with service(llm) as without:
            told = Told(without)
            told.say("resume", **again(token, ids[:2]))
            assert (await told.get("error"))["code"] == "resume_unknown"


async def test_text_missing_from_replay_is_generated_again() -> None:
    async with (
        AsyncLLM(TableModel(seed=1), tokenizer=byte_tokenizer()) as llm,
        service(llm, replay_bytes=1200) as served,
    ):
        told = Told(served)
        told.say("generate", **{**ASKED, "params": {"max_new_tokens": 60, "seed": 1}})
        token = (await told.get("accepted"))["resume_token"]
        asked = {**ASKED, "params": {"max_new_tokens": 60, "seed": 1}}
        while (await told.get("delta", "done", "error"))["type"] == "delta":
            pass
        replay = served.registry._answers[token].replay
        told.session.leave(1001)
        if replay.first_kept == 1:
            replay._sent.popleft()
        told = Told(served)
        told.say("resume", **again(token, [], request=asked, after=0))
        assert (await told.get("accepted", "error"))["type"] == "accepted"
        assert served.registry.find(token) is None


async def test_without_a_secret_a_server_says_that_it_takes_nothing_over() -> None:
    async with AsyncLLM(TableModel(seed=1), tokenizer=byte_tokenizer()) as llm:
        token, ids = await begin(llm, resume_secret="")
        async with service(llm, resume_secret="") as second:
            told = Told(second)
            assert not (await told.get("hello"))["takes_over"]
            told.say("resume", **again(token, ids[:1]))
            assert (await told.get("error"))["code"] == "resume_unknown"
    with pytest.raises(ValueError, match="16 characters") as refused:
        StreamSettings(resume_secret="short")
    assert "short" not in str(refused.value)
    assert SECRET not in repr(StreamSettings(resume_secret=SECRET))


async def test_answer_survives_a_takeover_by_a_different_request() -> None:
    """A kept answer ends only for the same request."""
    gate = Gate()
    asked = {**ASKED, "params": {"max_new_tokens": 20, "seed": 1}}
    async with AsyncLLM(TableModel(seed=1, hook=gate), tokenizer=byte_tokenizer()) as llm:
        async with service(llm, replay_bytes=2000) as one:
            first, second = Told(one), Told(one)
            first.say("generate", **asked)
            token = (await first.get("accepted"))["resume_token"]
            ids: list[int] = []
            while len(ids) < 15:
                gate.allow()
                ids += (await first.get("delta"))["token_ids"]
            second.say("resume", **again(token, ids[:2], request={**asked, "prompt": "other"}))
            assert (await second.get("error"))["code"] == "resume_changed"
            while len(ids) < 18:
                gate.allow()
                ids += (await first.get("delta"))["token_ids"]
            second.say("resume", **again(token, ids[:2], request=asked))
            assert (await first.get("error", "done"))["code"] == "resume_moved"
            rest: list[int] = []
            async with anyio.create_task_group() as tasks:

                async def let_through() -> None:  # no faster than this test reads
                    while True:
                        gate.allow()
                        await anyio.sleep(0.002)

                tasks.start_soon(let_through)
                while (message := await second.get("delta", "done"))["type"] == "delta":
                    rest += message["token_ids"]
                tasks.cancel_scope.cancel()
            assert rest[:16] == ids[2:18] and len(rest) == 18
