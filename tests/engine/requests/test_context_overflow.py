"""A prompt that is too long for the context is cut as the request asks, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.engine.requests.context_overflow import turn_starts
from asyncgen.errors import ContextLengthError, InvalidRequestError
from tests.cases import for_each
from tests.doubles.models import TableModel, byte_tokenizer
from tests.engine.batches import Bench
from tests.engine.making import request_for

if TYPE_CHECKING:
    from asyncgen.engine.requests.request import Request
    from asyncgen.types import Message

CONTEXT = 40
TEXT = "".join(chr(97 + place % 26) for place in range(100))


def prepared(prompt: Any, **given: Any) -> Request:
    """A request to a model with a short context."""
    return request_for(prompt, model=TableModel(context_length=CONTEXT), **given)[0]


def texts(request: Request) -> str:
    """The prompt that is left."""
    return bytes(request.prompt_ids).decode()


@for_each("prompt", [TEXT, list(TEXT.encode())], ids=type)
def test_a_long_prompt_loses_its_middle_or_its_beginning(prompt: Any) -> None:
    middle = prepared(prompt, context_overflow="truncate_middle", max_new_tokens=10)
    assert texts(middle) == TEXT[:15] + TEXT[-15:]
    assert middle.truncated_tokens == 70
    rolling = prepared(prompt, context_overflow="rolling", max_new_tokens=10)
    assert texts(rolling) == TEXT[-30:] and rolling.truncated_tokens == 70
    same = prepared(prompt, truncation="auto", max_new_tokens=10)
    assert same.prompt_ids == middle.prompt_ids
    open_end = prepared(prompt, context_overflow="rolling")
    assert texts(open_end) == TEXT[-30:]  # a quarter of the context is the answer's
    assert open_end.params.config.max_length == CONTEXT
    short = prepared(prompt, context_overflow="rolling", max_length=20, min_new_tokens=8)
    assert texts(short) == TEXT[-12:]


@for_each("given", [{}, {"context_overflow": "refuse"}, {"truncation": "disabled"}])
def test_without_being_asked_nothing_is_left_out(given: dict[str, Any]) -> None:
    with pytest.raises(ContextLengthError, match="the prompt has 100 tokens"):
        prepared(TEXT, max_new_tokens=3, **given)


@for_each("policy", ["truncate_middle", "rolling"])
def test_a_prompt_that_fits_is_left_alone(policy: str) -> None:
    for length in (1, 35, 37):
        request = prepared(TEXT[:length], context_overflow=policy, max_new_tokens=3)
        assert texts(request) == TEXT[:length] and request.truncated_tokens == 0


def test_the_token_that_begins_a_text_stays_in_front() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = "<start>"
    begin = tokenizer.bos_token_id
    assert begin is not None
    model = TableModel(context_length=CONTEXT)
    prompt = [begin, *TEXT.encode()]
    given: dict[str, Any] = {"context_overflow": "rolling", "max_new_tokens": 10}
    request, _ = request_for(prompt, model=model, tokenizer=tokenizer, **given)
    assert request.prompt_ids == [begin, *TEXT[-29:].encode()]


def turn(role: str, content: str) -> Message:
    return {"role": role, "content": content}


TALK: list[Message] = [
    turn("system", "S"),
    turn("user", "a"),
    turn("assistant", "b"),
    turn("tool", "c"),
    turn("user", "d"),
    turn("assistant", "e"),
    turn("user", "f"),
]


def whole(messages: list[Message]) -> list[int]:
    """Ids of a conversation that fits."""
    return request_for(messages, max_new_tokens=3)[0].prompt_ids


@for_each(
    ("policy", "kept"),
    [
        ("rolling", [TALK[0], *TALK[4:]]),
        ("rolling", [TALK[0], TALK[6]]),
        ("truncate_middle", [*TALK[:4], TALK[6]]),
    ],
)
def test_a_conversation_loses_whole_turns(policy: str, kept: list[Message]) -> None:
    left = whole(kept)
    model = TableModel(context_length=len(left) + 3)
    given: dict[str, Any] = {"context_overflow": policy, "max_new_tokens": 3}
    request, _ = request_for(TALK, model=model, **given)
    assert request.prompt_ids == left
    assert request.truncated_tokens == len(whole(TALK)) - len(left)


def test_what_is_left_when_one_turn_is_too_long() -> None:
    talk = [turn("system", "S"), turn("user", "x" * 90)]
    given: dict[str, Any] = {"model": TableModel(context_length=CONTEXT), "max_new_tokens": 10}
    request, _ = request_for(talk, context_overflow="truncate_middle", **given)
    full = whole(talk)
    assert request.prompt_ids == full[:15] + full[-15:]
    with pytest.raises(ContextLengthError, match="last turn alone"):
        request_for(talk, context_overflow="rolling", **given)


@for_each(
    ("given", "name"),
    [
        ({"context_overflow": "middle"}, "context_overflow"),
        ({"context_overflow": True}, "context_overflow"),
        ({"truncation": "on"}, "truncation"),
        ({"truncation": "auto", "context_overflow": "rolling"}, "truncation"),
        ({"context_overflow": "rolling", "max_new_tokens": CONTEXT}, "max_new_tokens"),
        ({"context_overflow": "rolling", "max_length": 1}, "max_length"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        prepared(TEXT, **given)
    assert caught.value.parameter == name


def test_a_prompt_of_many_contexts_is_refused_before_it_is_tokenized() -> None:
    with pytest.raises(ContextLengthError, match="at least"):
        prepared("a b " * 5000, context_overflow="rolling", max_new_tokens=3)
    with pytest.raises(ContextLengthError, match="each takes at least a token"):
        prepared([turn("user", "a")] * (16 * CONTEXT + 1), context_overflow="rolling")


def test_usage_tells_what_was_left_out_and_a_cut_request_goes_on() -> None:
    given: dict[str, Any] = {"context_overflow": "rolling", "max_new_tokens": 8, "seed": 1}

    def run(**more: Any) -> list[Any]:
        bench = Bench(TableModel(context_length=CONTEXT))
        _, sink = bench.add(list(TEXT.encode()), **given, **more)
        bench.run()
        return sink.events

    events = run()
    usage = events[-1].usage
    assert (usage.prompt_tokens, usage.truncated_tokens) == (32, 68)
    ids = [token for event in events for token in event.token_ids]
    rest = run(generated_ids=ids[:3])
    assert [token for event in rest for token in event.token_ids] == ids[3:]
    assert rest[-1].usage.truncated_tokens == 68


def test_turns_begin_behind_the_system_and_at_each_user() -> None:
    assert turn_starts(TALK) == [1, 4, 6]
    assert turn_starts([turn("user", "a")]) == [0]
    assert turn_starts([turn("system", "a")]) == [0]
    assert turn_starts([turn("developer", "a"), turn("assistant", "b")]) == [1]
