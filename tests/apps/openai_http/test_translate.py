"""Test the translation of bodies to the library's parameters."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen_apps.openai_http.errors import ApiError
from asyncgen_apps.openai_http.request_schema import ChatCompletionRequest, CompletionRequest
from asyncgen_apps.openai_http.translate import Plan, plan
from tests.cases import for_each

TURN = {"role": "user", "content": "hi"}


def chat(**fields: Any) -> Plan:
    body = {"model": "m", "messages": [TURN], **fields}
    return plan(ChatCompletionRequest.model_validate(body))


def text(**fields: Any) -> Plan:
    return plan(CompletionRequest.model_validate({"model": "m", "prompt": "a", **fields}))


@for_each(
    ("given", "wanted"),
    [
        ({}, {}),
        ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
        ({"temperature": 0, "top_k": 4}, {"temperature": 0, "top_k": 4}),
        ({"max_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_tokens": 5, "max_completion_tokens": 5}, {"max_new_tokens": 5}),
        ({"seed": 3, "stop": ["x"]}, {"seed": 3, "stop": ["x"]}),
        ({"presence_penalty": 1.0}, {"presence_penalty": 1.0}),
        ({"logit_bias": {"5": -100}}, {"sequence_bias": {(5,): -100.0}}),
        ({"sequence_bias": [[[1, 2], 3.0]]}, {"sequence_bias": [[[1, 2], 3.0]]}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"logprobs": False}, {}),
        ({"n": 3}, {"n": 3}),
        ({"chat_template_kwargs": {"a": [1]}}, {"chat_template_kwargs": {"a": [1]}}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "strict": True, "schema": {"type": "null"}},
                }
            },
            {"json_schema": {"type": "null"}},
        ),
        ({"choice": ["a"]}, {"choice": ["a"]}),
        ({"n": 1}, {}),
        ({"min_tokens": 4}, {"min_new_tokens": 4}),
        ({"ignore_eos": True}, {"eos_token_id": []}),
        ({"ignore_eos": False}, {}),
        ({"num_beams": 4, "do_sample": False}, {"num_beams": 4, "do_sample": False}),
    ],
)
def test_parameters(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    planned = chat(**given)
    assert len(planned.parts) == 1
    assert planned.parts[0].params == wanted


def test_parts_of_a_content_are_handed_on() -> None:
    """The chat template decides what becomes of them, as behind every other door."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": parts}, TURN]
    (part,) = chat(messages=messages).parts
    assert part.prompt == [{"role": "system", "content": parts}, TURN]


@for_each(
    ("given", "param"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"max_tokens": 5, "max_new_tokens": 6}, "max_tokens"),
        ({"min_tokens": 5, "min_new_tokens": 6}, "min_tokens"),
        ({"ignore_eos": True, "eos_token_id": 3}, "ignore_eos"),
        ({"logit_bias": {"5": 1}, "sequence_bias": [[[1], 1.0]]}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"top_logprobs": 1}, "top_logprobs"),
    ],
)
def test_contradictions(given: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**given)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_greedy_choices_are_streams_of_their_own() -> None:
    planned = chat(n=3, temperature=0)
    assert [part.first for part in planned.parts] == [0, 1, 2]
    assert [part.counts_prompt for part in planned.parts] == [True, False, False]
    assert planned.choices == 3
    assert len(chat(n=3, do_sample=False, num_beams=4).parts) == 1, "beams differ"


def test_prompts_and_choices() -> None:
    planned = text(prompt=["a", "b"], n=2, temperature=1)
    assert [(part.prompt, part.first) for part in planned.parts] == [("a", 0), ("b", 2)]
    assert planned.choices == 4
    with pytest.raises(ApiError, match="1024"):
        text(prompt=["a"] * 1000, n=2)
    for empty in (["a", ""], [[1], []]):
        with pytest.raises(ApiError) as refused:
            text(prompt=empty)
        assert refused.value.param == "prompt[1]"


def test_the_length_of_a_text_completion() -> None:
    assert text().parts[0].params == {"max_new_tokens": 16}
    assert text(max_length=9).parts[0].params == {"max_length": 9}
    assert text(logprobs=0).logprobs
    assert not text().logprobs


def test_messages() -> None:
    turns = [{"role": "developer", "content": "d"}, {**TURN, "name": "eva"}]
    assert chat(messages=turns).parts[0].prompt == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": "hi", "name": "eva"},
    ]


def test_names_for_errors() -> None:
    assert chat(max_tokens=3, logit_bias={"1": 1}).names == {
        "prompt": "messages",
        "max_new_tokens": "max_tokens",
        "sequence_bias": "logit_bias",
    }
