"""Answers that a response template declares: text, reasoning and calls, none of it lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.text.tool_calls.call_collector import CallCollector
from asyncgen.text.tool_calls.format_detection import ChatFormats, find_formats
from tests.cases import for_each
from tests.text.response_template.test_response_parser import ANCHOR, CHAT, TAGS
from tests.text.tool_calls.templates import QWEN, template

SCHEMAS = {"f": {"properties": {"a": {"type": "integer"}}}, "g": {}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "7"}}\n</tool_call>'
OTHER = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
CHANNELS: dict[str, Any] = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
        "tool_calls": {
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
            "close": "<|call|>",
            "repeats": True,
            "content": "json",
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"open": "<|channel|>final<|message|>", "close": ["<|return|>", "<|end|>"]},
    },
}

SAID = (
    "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    "<|return|>"
)


def declared(source: dict[str, Any]) -> ChatFormats:
    return find_formats(None, response_template=source)


def read(formats: ChatFormats, text: str, *, prompt: str = "", **options: Any) -> Any:
    """Return text, reasoning, calls and errors; pieces of any size come to the same."""
    results = []
    for step in (1000, 1, 2, 5):
        calls = CallCollector(
            options.get("schemas", SCHEMAS), str, is_single=options.get("is_single", False)
        )
        parser = formats.parser(
            calls,
            reads_reasoning=options.get("reads_reasoning", True),
            prefix=formats.opened_by(prompt),
        )
        pieces = [text[at : at + step] for at in range(0, len(text), step)]
        out = "".join(map(parser.put, pieces)) + parser.flush()
        reasoning, deltas = parser.take()
        bad = [delta.index for delta in deltas if delta.error]
        found: dict[int, list[str]] = {}
        for delta in deltas:
            if delta.index not in bad:
                found.setdefault(delta.index, []).append((delta.name or "") + delta.arguments)
        results.append((out, reasoning, ["".join(each) for each in found.values()], len(bad)))
    assert results.count(results[0]) == len(results)
    return results[0]


@for_each(
    ("source", "answer", "wanted"),
    [
        (
            CHAT,
            f"<think>\nHm.\n</think>\n\nHi <b>\n{CALL}\n{OTHER}<|im_end|>",
            ("Hi <b>", "Hm.", ['f{"a": 7}', "g{}"], 0),
        ),
        (CHAT, f"Hi {CALL} then {OTHER} end", ("Hithenend", "", ['f{"a": 7}', "g{}"], 0)),
        (CHAT, "Only text", ("Only text", "", [], 0)),
        (TAGS, "x <f=f><p=a> 7 </p></f>y<stop>", ("xy", "", ['f{"a": 7}'], 0)),
        (
            CHANNELS,
            SAID,
            ("Hi", "Hm", [], 0),
        ),
        (
            CHANNELS,
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
            ("", "", ['f{"a": 1}'], 0),
        ),
        (CHANNELS, "Only text, without a channel", ("Only text, without a channel", "", [], 0)),
    ],
)
def test_answer_is_split_as_its_template_declares(
    source: dict[str, Any], answer: str, wanted: Any
) -> None:
    assert read(declared(source), answer) == wanted


def test_prompt_may_have_opened_a_region() -> None:
    formats = declared(CHAT)
    assert read(formats, "Hm.</think>Hi", prompt=f"a{ANCHOR}<think>\n") == ("Hi", "Hm.", [], 0)
    assert read(formats, " more", prompt=f"{ANCHOR}So far")[0] == " more"
    assert read(formats, "Hi", prompt=f"{ANCHOR}<think></think>") == ("Hi", "", [], 0)


@for_each(
    "call",
    [
        "<tool_call>{bad</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "argum',
        "<tool_call>[1]</tool_call>",
    ],
)
def test_malformed_call_is_text_and_an_error(call: str) -> None:
    text, _, calls, errors = read(declared(CHAT), OTHER + call)
    assert (text, calls, errors) == (call, ["g{}"], 1)


def test_what_is_not_asked_for_stays_in_the_text() -> None:
    text = f"a <think>\nHm</think>\n\nHi {CALL}\nso {CALL}"
    assert read(declared(CHAT), text, schemas=None)[:2] == (f"aHi {CALL}\nso {CALL}", "Hm")
    raw = "a <think>\nHm</think>\n\nHi"
    assert read(declared(CHAT), text, reads_reasoning=False)[0] == f"{raw}so"
    assert read(declared(CHAT), text, reads_reasoning=False, schemas=None)[0] == text


def test_one_call_is_enough() -> None:
    found = read(declared(CHAT), f"Hi {CALL} {OTHER} more", is_single=True)
    assert found == ("Hi", "", ['f{"a": 7}'], 0)


def test_template_comes_before_the_formats_unless_one_is_named() -> None:
    own = {**CHAT, "fields": {**CHAT["fields"], "reasoning_content": {"open": "{", "close": "}"}}}
    formats = find_formats(QWEN, None, None, own)
    assert formats.response is not None and formats.reads_calls
    assert formats.tools is not None and formats.tools.name == "qwen"  # writes what `own` reads
    assert formats.reasoning is not None and formats.reasoning.end == "}"
    assert {"<tool_call>", "{", "</tool_call>"} <= formats.markers
    assert find_formats(QWEN, "qwen", None, own).response is None
    other = template(f"'<call>' + {json.dumps('f')}")
    assert find_formats(other, None, None, CHAT).tools is None
    no_calls = {**CHAT, "fields": {"content": {}}}
    assert not find_formats(QWEN, None, None, no_calls).reads_calls


def test_malformed_template_is_refused_where_the_model_is_loaded() -> None:
    with pytest.raises(InvalidRequestError, match="fields.x.opens") as caught:
        find_formats(QWEN, None, None, {"start_anchor": "a", "fields": {"x": {"opens": ""}}})
    assert "tool_format" in caught.value.__notes__[0]
