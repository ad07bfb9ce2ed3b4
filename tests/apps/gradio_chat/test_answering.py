"""An answer grows in its turn, ends with figures or words, and stops when nobody reads it."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from asyncgen import EngineClosedError, EngineDiedError, InvalidRequestError
from asyncgen_apps.gradio_chat.answering import answer
from asyncgen_apps.gradio_chat.conversations import ChatHistory
from asyncgen_apps.gradio_chat.sessions import Session
from tests.apps.engine_process import engine_process
from tests.apps.gradio_chat.doubles import ScriptedModel, ScriptedStream

if TYPE_CHECKING:
    from asyncgen import StreamParams

pytestmark = pytest.mark.anyio


def _session(question: str = "Who?") -> Session:
    session = Session(ChatHistory.new())
    session.history.current.ask(question)
    return session


async def test_an_answer_becomes_the_last_turn() -> None:
    session, model = _session(), ScriptedModel()
    conversation = session.history.current
    async for turn in answer(model, session, conversation, {"seed": 3}, "Be kind."):
        assert conversation.turns[-1] is turn
    assert turn.text == "An answer."
    assert turn.figures["ended by"] == "complete"
    assert len(session.logprobs[turn.key]) == 2
    assert not session.is_running(conversation)
    prompt, params = model.asked[0]
    assert prompt == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Who?"},
    ]
    assert params == {"seed": 3}


@pytest.mark.gate
async def test_an_engine_in_another_process_answers() -> None:
    params: StreamParams = {"seed": 3, "max_new_tokens": 20}
    session = _session()
    conversation = session.history.current
    with engine_process(num_threads=1) as llm:
        turns = [turn async for turn in answer(llm, session, conversation, params)]
        wanted = await llm.generate([{"role": "user", "content": "Who?"}], **params)
        assert turns[-1].text == wanted.text
        assert turns[-1].figures["tokens"] == f"{wanted.usage.completion_tokens} tokens"
        llm.kill()
        await anyio.to_thread.run_sync(llm.close)
        conversation.ask("And now?")
        turns = [turn async for turn in answer(llm, session, conversation, params)]
        assert "must be started again" in turns[-1].error


async def test_queue_position_is_shown() -> None:
    model = ScriptedModel(streams=[ScriptedStream([], waits=True)], waiting=2)
    session = _session()
    conversation = session.history.current
    async with aclosing(answer(model, session, conversation, {}, max_interval=0.01)) as turns:
        await anext(turns)
        assert session.statuses[conversation.key] == "In the queue: 1 ahead"
        model.waiting = 1
        await anext(turns)
        assert session.statuses[conversation.key] == "In the queue: next"
        model.waiting = 0
        await anext(turns)
        assert session.statuses[conversation.key] == "Reading the prompt"


async def test_stop_keeps_the_received_text() -> None:
    stream = ScriptedStream(["An "], waits=True)
    session, model = _session(), ScriptedModel(streams=[stream])
    conversation = session.history.current
    async for _ in answer(model, session, conversation, {}):
        session.stop(conversation)
    turn = conversation.turns[-1]
    assert turn.text == "An "
    assert turn.figures["ended by"] == "stopped"


async def test_leaving_stops_the_model() -> None:
    stream = ScriptedStream(["An "], waits=True)
    session, model = _session(), ScriptedModel(streams=[stream])
    conversation = session.history.current
    async with aclosing(answer(model, session, conversation, {})) as turns:
        turn = await anext(turns)
    assert stream.is_cancelled
    assert not session.is_running(conversation)
    assert turn.figures == {"ended by": "stopped"}


async def test_a_refused_request_is_an_answer_in_words() -> None:
    refused = InvalidRequestError("top_p", 3, "from 0 to 1")
    session, model = _session(), ScriptedModel(streams=[refused])
    turns = [turn async for turn in answer(model, session, session.history.current, {})]
    assert len(turns) == 1
    assert "`top_p` is 3" in turns[0].error


async def test_dead_engine_shows_an_error_at_once() -> None:
    class Dead(ScriptedModel):
        async def measure(self) -> Any:
            raise EngineClosedError("no model is loaded")

    session, model = _session(), Dead(streams=[EngineDiedError("boom")])
    turns = [turn async for turn in answer(model, session, session.history.current, {})]
    assert "must be started again" in turns[-1].error


async def test_dying_engine_keeps_the_text_and_shows_an_error() -> None:
    dying = ScriptedStream(["An "], fails=EngineDiedError("boom"))
    session, model = _session(), ScriptedModel(streams=[dying])
    turns = [turn async for turn in answer(model, session, session.history.current, {})]
    turn = turns[-1]
    assert turn.text == "An "
    assert "must be started again" in turn.error
    assert not session.running


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs"])
async def test_a_model_without_log_probabilities_answers_without_them(name: str) -> None:
    refusal = InvalidRequestError(name, True, "not available from a foreign model object")
    session = _session()
    model = ScriptedModel(streams=[ScriptedStream([], fails=refusal)])
    conversation = session.history.current
    turns = [t async for t in answer(model, session, conversation, {"top_logprobs": 5, "seed": 3})]
    turn = turns[-1]
    assert (turn.text, turn.error) == ("An answer.", "")
    assert len(conversation.turns) == 2
    assert [params for _, params in model.asked] == [{"top_logprobs": 5, "seed": 3}, {"seed": 3}]
    conversation.ask("And?")
    assert [t async for t in answer(model, session, conversation, {"top_logprobs": 5})]
    assert model.asked[-1][1] == {}


async def test_log_probabilities_that_were_chosen_are_refused() -> None:
    refusal = InvalidRequestError("logprobs", True, "not available from a foreign model object")
    session = _session()
    model = ScriptedModel(streams=[ScriptedStream([], fails=refusal)])
    conversation = session.history.current
    turns = [t async for t in answer(model, session, conversation, {"top_logprobs": 7})]
    assert "`logprobs` is True: not available" in turns[-1].error
