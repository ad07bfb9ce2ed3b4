"""A request is complete before it is posted, or it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncgen.errors import ChatTemplateError, ContextLengthError, InvalidRequestError
from asyncgen.types import ToolCall
from tests.cases import for_each
from tests.doubles.models import EOS, TableModel, byte_tokenizer
from tests.engine.making import request_for


def test_a_text_prompt() -> None:
    request, _ = request_for("héllo")
    assert request.prompt_ids == list("héllo".encode())
    assert request.continues_text
    assert request.stop_checks.eos_token_ids == {EOS}
    assert request.stop_checks.max_length == 512
    assert request.accepted_at > 0


def test_messages() -> None:
    request, _ = request_for([{"role": "user", "content": "hi"}])
    expected = byte_tokenizer().encode_ids("<start>user:hi<end><start>assistant:")
    assert request.prompt_ids == expected
    assert not request.continues_text


def test_calls_are_taken_back_in_every_form_that_returns_them() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[1] | tojson }}"
    made = ToolCall("a1", "weather", '{"city": "Köln"}')
    flat = {"id": "a1", "name": "weather", "arguments": made.arguments}
    function = {"name": "weather", "arguments": {"city": "Köln"}}
    whole = {"type": "function", "id": "a1", "function": function}
    prompts = []
    for call in (whole, flat, made, {**flat, "arguments": {"city": "Köln"}}):
        message: Any = {
            "role": "assistant",
            "content": "",
            "tool_calls": [call],
            "tool_call_errors": [],
        }
        asked: list[dict[str, Any]] = [{"role": "user", "content": "hi"}, message]
        prompts.append(request_for(asked, tokenizer=tokenizer)[0].prompt_ids)
    assert prompts[1:] == prompts[:-1]
    assert json.loads(bytes(prompts[0]))["tool_calls"] == [whole]
    for wrong in ({"name": 5, "arguments": {}}, {"name": "x", "arguments": "oh"}, "x"):
        asked[1]["tool_calls"] = [wrong]
        with pytest.raises(InvalidRequestError, match=r"`messages\[1\].tool_calls\[0\]"):
            request_for(asked, tokenizer=tokenizer)


def test_more_messages_than_the_context_has_tokens() -> None:
    """No template goes through them: this one fails at the first."""
    messages = [{"role": "user", "content": "hi"}] * 513
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ nobody.reads['this'].far }}"
    with pytest.raises(ContextLengthError, match="`prompt` is 513 messages: .* holds 512"):
        request_for(messages, tokenizer=tokenizer)
    with pytest.raises(ChatTemplateError):
        request_for(messages[1:], tokenizer=tokenizer)


def test_ids_are_copied() -> None:
    prompt = [1, 2, 3]
    request, _ = request_for(prompt)
    prompt.append(4)
    assert request.prompt_ids == [1, 2, 3]


def test_the_cancel_flag_is_among_the_ends() -> None:
    request, _ = request_for()
    assert request.stop_checks.interrupted() is None
    request.cancel.set()
    assert request.stop_checks.interrupted() == "cancelled"


def test_ids_name_the_request() -> None:
    one, other = request_for()[0], request_for()[0]
    assert one.id != other.id
    assert one != other


def test_processors_in_order() -> None:
    request, _ = request_for(temperature=0.5, top_k=5, repetition_penalty=1.2)
    names = [type(processor).__name__ for processor in request.processors]
    assert names == [
        "RepetitionPenaltyLogitsProcessor",
        "TemperatureLogitsWarper",
        "TopKLogitsWarper",
    ]


@pytest.mark.parametrize("prompt", [[260], [-1], [0, 10**9]])
def test_ids_beyond_the_vocabulary(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="0 to 259"):
        request_for(prompt)


def test_a_text_of_no_tokens() -> None:
    class Silent:
        def encode_ids(self, text: str) -> list[int]:
            return []

    with pytest.raises(InvalidRequestError, match="at least one token"):
        request_for("x", tokenizer=Silent())


@pytest.mark.parametrize("prompt", ["a\ud800", [{"role": "user", "content": "a\udfff"}]])
def test_half_a_character_is_no_prompt(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="lone surrogate") as caught:
        request_for(prompt)
    assert caught.value.parameter == "prompt"
    assert caught.value.value == prompt


@pytest.mark.parametrize("name", ["stop", "stop_strings"])
def test_half_a_character_is_no_stop_string(name: str) -> None:
    for value in ("\ud800", ["x", "\ud800"]):
        with pytest.raises(InvalidRequestError, match="lone surrogate") as caught:
            request_for(**{name: value})
        assert caught.value.parameter == name


def test_messages_without_a_template() -> None:
    with pytest.raises(ChatTemplateError):
        request_for(
            [{"role": "user", "content": "x"}], tokenizer=byte_tokenizer(chat_template=None)
        )


def test_unsupported_beam_groups_are_refused_before_any_forward() -> None:
    model = TableModel()
    with pytest.raises(InvalidRequestError, match="num_beam_groups"):
        request_for(model=model, num_beams=3, num_beam_groups=2)
    assert model.num_forwards == 0


@for_each(
    ("name", "given"),
    [
        ("max_cache_len", {"max_cache_len": 10**9, "cache_implementation": "static"}),
        ("negative_prompt_ids", {"negative_prompt_ids": [1] * 512, "guidance_scale": 2.0}),
        ("guidance_scale", {"guidance_scale": 2**64}),
        ("sequence_bias", {"sequence_bias": [[[1], 1e300]]}),
        ("sequence_bias", {"sequence_bias": [[[1], float("nan")]]}),
        ("top_k", {"top_k": 2**63}),
        ("top_k", {"top_k": True}),
        ("temperature", {"temperature": 10**400}),
        ("max_time", {"max_time": 10**400}),
        ("stop", {"stop": ["x" * 100] * 200}),
        ("stop_strings", {"stop_strings": 5}),
        ("num_beams", {"num_beams": 10**6, "do_sample": False}),
    ],
)
def test_huge_values_are_refused_before_they_reach_the_engine(
    name: str, given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request_for([1, 2], **given)
    assert caught.value.parameter == name
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["suppress_tokens", "watermarking_config", "stop", "eos_token_id"])
def test_deep_nesting_is_refused_by_name(name: str) -> None:
    nested: list[Any] = [1]
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(InvalidRequestError) as caught:
        request_for([1, 2], **{name: nested})
    assert caught.value.parameter == name


def test_samples_share_one_search_for_stop_strings() -> None:
    request, _ = request_for([1], stop=["ab"], n=2, do_sample=True)
    first, second = (request.text_of(0, byte_tokenizer()) for _ in range(2))
    assert first.add([97]) == ("", None)
    assert second.add([98]) == ("b", None)
    assert first.add([98]) == ("", "ab")
    assert request.stops is not None and request.stops.held == ""
