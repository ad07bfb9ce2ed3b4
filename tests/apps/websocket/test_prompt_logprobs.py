"""Test log-probabilities of prompts over the wire: they equal the library's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from asyncgen import AsyncLLM, TokenEvent, TokenLogprob, TopLogprob
from asyncgen_apps.remote.messages import StreamRequest, StreamStarted
from asyncgen_apps.remote.progress import Progress
from asyncgen_apps.websocket import connect, serve_websocket
from asyncgen_apps.websocket.client.request import Request
from asyncgen_apps.websocket.engine_messages import prompt_pieces
from asyncgen_apps.websocket.replay import LONGEST, Replay
from asyncgen_apps.websocket.settings import StreamSettings
from tests.apps.websocket.cutting import CuttingProxy
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.anyio

ENTRY = TokenLogprob(1, "a", -0.5, (TopLogprob(1, "a", -0.5),))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_client_reads_what_the_library_tells() -> None:
    """Also of a prompt that tells more than may be unread, and where the connection is cut."""
    settings = StreamSettings(replay_bytes=200_000)
    prompts: list[Any] = ["a", "abc", [97, 98] * 900]
    async with (
        AsyncLLM(TableModel(context_length=4096), tokenizer=byte_tokenizer()) as llm,
        serve_websocket(llm, settings=settings) as server,
    ):
        with CuttingProxy(server.port) as wire, anyio.fail_after(60):
            async with connect(wire.url) as client:
                for prompt in prompts:
                    for new in (0, 5):
                        given: Any = {"prompt_logprobs": 2, "max_new_tokens": new, "seed": 3}
                        expected = await llm.generate(prompt, **given)
                        events = []
                        stream = client.stream(prompt, **given)
                        async for event in stream.events():
                            events.append(event)
                            if len(events) == 1 and event.finish_reason is None:
                                wire.cut()
                        assert stream.result.prompt_logprobs == expected.prompt_logprobs
                        assert expected.prompt_logprobs is not None
                        assert stream.result.token_ids == expected.token_ids
                        assert events[0].prompt_logprobs == expected.prompt_logprobs
                        assert not any(event.prompt_logprobs for event in events[1:])


def test_pieces_are_short_and_join_to_the_whole() -> None:
    entries = (None, *[ENTRY] * 500)
    replay = Replay(10**9)
    for piece in prompt_pieces(TokenEvent(0, (1,), "x", prompt_logprobs=entries)):
        replay.add(piece)
    assert not list(prompt_pieces(TokenEvent(0, (1,), "x")))
    pieces = replay.take()
    assert len(pieces) > 10
    assert all(piece.size < LONGEST + 1000 for piece in pieces)
    assert tuple(one for piece in pieces for one in piece.prompt_logprobs or ()) == entries
    replay.rewind(3)
    again = replay.take()
    assert tuple(one for piece in again for one in piece.prompt_logprobs or ()) == tuple(
        one for piece in pieces[3:] for one in piece.prompt_logprobs or ()
    )


def test_a_client_that_moves_asks_once() -> None:
    request = Request({"prompt": "x"}, {"prompt_logprobs": 1}, lambda: 0.0)
    request.accept("token")
    request.add(1, 1, index=0, text="", token_ids=[], logprobs=None, prompt=[None])
    request.move()
    assert request.sent_params == {"prompt_logprobs": 1}  # it has them in part
    request.add(1, 1, index=0, text="", token_ids=[], logprobs=None, prompt=[None, ENTRY])
    request.add(2, 2, index=0, text="a", token_ids=[7], logprobs=None)
    assert request.events[0].prompt_logprobs == (None, ENTRY)
    request.move()
    assert request.sent_params == {"generated_ids": [7]}


def test_an_engine_that_goes_on_is_not_asked_again() -> None:
    progress = Progress(StreamRequest("x", {"prompt_logprobs": 1}))
    progress.begin(StreamStarted([1, 2], 5, (0,), None, "r"))
    first = TokenEvent(0, (), "", prompt_logprobs=(None, ENTRY))
    assert progress.take([first]) == [first]
    progress.lose(0.0)
    assert progress.next_request().params == {"prompt_logprobs": 1, "seed": 5}
    [fresh] = progress.take([TokenEvent(0, (7,), "a", prompt_logprobs=(None, ENTRY))])
    assert fresh.prompt_logprobs is None
    progress.lose(0.0)
    assert progress.next_request().params == {"seed": 5, "generated_ids": [7]}
