"""Answers become the messages of transformers, at once and in pieces; malformed templates fail."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.text.response_template.patterns import Literals
from asyncgen.text.response_template.response_parser import ResponseParser, parse_response
from asyncgen.text.response_template.template import read_template
from tests.cases import for_each

ANCHOR = "<|im_start|>assistant\n"
CHAT: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": ANCHOR,
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"},
    },
}
TAGS: dict[str, Any] = {
    "defaults": {"kv": {}},
    "start_anchor_pattern": "A+",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<f=(?P<name>\w+)>",
            "close": "</f>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<p=(?P<key>\w+)>\s*(?P<value>.*?)\s*</p>",
                "merge_duplicates": True,
            },
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}"},
            },
        },
        "kv": {
            "open": "<kv>",
            "close": ["</kv>", "|"],
            "content": "kv-lines",
            "content_args": {"value_parser": {"name": "json", "args": {"allow_non_json": True}}},
        },
        "content": {"close_pattern": r"<end>\Z|<stop>"},
    },
}
LISTS: dict[str, Any] = {
    "start_anchor": ["A", "AB"],
    "fields": {
        "x": {"open": ["<a", "<ab"], "close": ["]", "]]"], "repeats": True, "join": "|"},
        "y": {"open": "<ab>", "close_pattern": r"</y>|\n"},
        "n": {"open": "<n>", "close": "</n>", "content": "int"},
        "ok": {"open": "<b>", "close": ";", "content": "bool"},
        "act": {
            "open": "<act>",
            "close": "</act>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [["<|", "|>"]]},
            "transform_each": True,
            "transform": {"f": "{name}", "g": ["{arguments.a}", "lit", 3]},
        },
    },
}
TEMPLATES = [CHAT, TAGS, LISTS]
PIECES = ["<think>", "</think>", "\n", "  ", "text", "<tool_call>", "</tool_call>", "<", "<|im_"]
PIECES += ['{"name": "f", "arguments": {"a": "1"}}', "<|im_end|>", "<f=foo>", "<f=", "</f>", "A"]
PIECES += ["<p=k>v</p>", "<p=k> 2 </p>", "<kv>", "</kv>", "k: 1\nz: [1]\nq", "<end>", "<stop>"]
PIECES += ["<a", "b", "<ab>", "]", "]]", "</y>", "<n>", "4", "</n>", "<b>", "true", ";", "<act>"]
PIECES += ["</act>", '[{name:<|n"|>,arguments:{a:5}}]', "|", ANCHOR]
PREFIXES = ["", "A", ANCHOR + "<think>\n", "AAB<a", "xyz", f"{ANCHOR}<think>no</think>{ANCHOR}yes"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {key: {"type": kinds}}},
        },
    }
    for name, key, kinds in (("f", "a", "integer"), ("foo", "k", ["null", "number"]))
]


def read(
    parser_type: Any, template: dict[str, Any], pieces: list[str], prefix: str, tools: Any
) -> Any:
    """Return events, with pieces of a region joined, and the message; or that it fails."""
    try:
        parser = parser_type(template, prefix, tools=tools)
        events = list(parser.initial_events)
        for piece in pieces:
            events += parser.feed(piece)
        message, last = parser.finalize()
    except (ValueError, KeyError):
        return "an error"
    joined: list[dict[str, Any]] = []
    for event in events + last:
        if joined and event["type"] == joined[-1]["type"] == "region_chunk":
            joined[-1]["text"] += event["text"]
        else:
            joined.append(dict(event))
    return joined, message


def compare(count: int, seed: int) -> None:
    parsing = pytest.importorskip("transformers.utils.chat_parsing")
    rng = random.Random(seed)
    for _ in range(count):
        template, prefix = rng.choice(TEMPLATES), rng.choice(PREFIXES)
        text = "".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 9)))
        step = rng.choice([1000, 1, 2, 3])
        pieces = [text[at : at + step] for at in range(0, len(text), step)]
        case = (template, pieces, prefix, rng.choice([None, TOOLS]))
        assert read(ResponseParser, *case) == read(parsing.ResponseParser, *case), case[1:]


def test_random_answers_are_read_as_transformers_reads_them() -> None:
    compare(400, 0)


@pytest.mark.gate
def test_many_random_answers_are_read_as_transformers_reads_them() -> None:
    compare(8000, 1)


def test_answer_is_a_message() -> None:
    text = (
        'Hm.\n</think>\n\nHi <b>\n<tool_call>\n{"name": "f", "arguments": {"a": "7"}}\n</tool_call>'
    )
    message = parse_response(text + "<|im_end|>", CHAT, prefix=ANCHOR + "<think>\n", tools=TOOLS)
    assert message == {
        "role": "assistant",
        "reasoning_content": "Hm.",
        "content": "Hi <b>",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 7}}}],
    }
    assert CHAT["defaults"] == {"role": "assistant"}


def test_text_comes_as_it_is_written() -> None:
    parser = ResponseParser(CHAT, "")
    told = [[event["text"] for event in parser.feed(piece) if "text" in event] for piece in "Hi <x"]
    assert told == [["H"], ["i"], [], [" "], ["<x"]] or told == [["H"], ["i"], [], [], [" <x"]]


def test_long_answer_is_read_in_linear_time() -> None:
    parser = ResponseParser(CHAT, "")
    count = 0
    for _ in range(3000):
        count += sum(len(event.get("text", "")) for event in parser.feed("some words \n"))
    message, events = parser.finalize()
    assert len(message["content"]) == 36000 - 2 and count + len(events) > 35990


MALFORMED: list[tuple[Any, str]] = [
    ([], "response_template"),
    ({**CHAT, "version": 2}, "version"),
    ({**CHAT, "more": 1}, "response_template.more"),
    ({**CHAT, "defaults": []}, "defaults"),
    ({**CHAT, "fields": {}}, "fields"),
    ({"fields": CHAT["fields"]}, "start_anchor"),
    ({**CHAT, "start_anchor_pattern": "a"}, "start_anchor_pattern"),
    ({**CHAT, "start_anchor": ""}, "start_anchor"),
    ({**CHAT, "start_anchor": "a" * 20_000}, "declaration of .* characters.*at most 16384"),
    ({**CHAT, "fields": {"x": {"open": [f"{i}" for i in range(9999)]}}}, "at most 16384"),
]
FIELDS: list[tuple[Any, str]] = [
    ("text", "fields.x"),
    ({"opens": "a"}, "fields.x.opens"),
    ({"open": []}, "fields.x.open"),
    ({"open": ["a", 1]}, "fields.x.open"),
    ({"open": "a", "open_pattern": "a"}, "fields.x.open_pattern"),
    ({"open_pattern": "("}, "fields.x.open_pattern.*no regular expression"),
    ({"open_pattern": "(?=a)"}, "fields.x.open_pattern.*lookaround"),
    ({"open_pattern": "(?P<n>a)"}, "transform"),
    ({"open_pattern": ""}, "fields.x.open_pattern.*may match nothing"),
    ({"open_pattern": "a*|b"}, "may match nothing"),
    ({"open_pattern": "^(?:a?){9}"}, "may match nothing"),
    ({"open_pattern": r"(?:a|\b|b+)"}, "may match nothing"),
    ({"open_pattern": "(?:(?:(?:(?:){200}){200}){200}){200}a"}, "more than 2000 parts"),
    ({"open_pattern": "(?:(?:(?:a{0}){200}){200}){200}a"}, "more than 2000 parts"),
    ({"content": "yaml"}, "yaml"),
    ({"content_args": []}, "content_args"),
    ({"content": "json", "content_args": {"bare": True}}, "bare"),
    ({"content": "json", "content_args": {"string_delims": ["<>"]}}, "string_delims"),
    ({"content": "xml-inline"}, "tag_pattern"),
    ({"content": "kv-lines", "content_args": {"kv_sep": ""}}, "kv_sep"),
    ({"content": "kv-lines", "content_args": {"value_parser": {"name": "x"}}}, "'x'"),
    ({"join": ","}, "join"),
    ({"repeats": 1}, "repeats"),
    ({"transform_each": True}, "transform_each"),
    ({"transform": {"a": ["b {content}"]}}, "mixes"),
]


@for_each(("template", "match"), MALFORMED)
def test_malformed_template_is_refused_by_name(template: Any, match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        read_template(template)


@for_each(("field", "match"), FIELDS)
def test_malformed_field_is_refused_by_name(field: Any, match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        read_template({"start_anchor": "a", "fields": {"x": field}})


def test_second_field_without_a_beginning_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="x, y"):
        read_template({"start_anchor": "a", "fields": {"x": {}, "y": {}}})


def test_answers_that_do_not_fit_are_refused() -> None:
    parser = ResponseParser(CHAT, "")
    with pytest.raises(InvalidRequestError, match="tool_calls.*no JSON"):
        parser.feed("<tool_call>{bad</tool_call>x")
    with pytest.raises(InvalidRequestError, match="prefix"):
        parse_response("x", CHAT)
    needed = {"start_anchor": "a", "fields": {"n": {"open": "<", "optional": False}}}
    with pytest.raises(InvalidRequestError, match="has no n"):
        parse_response("x", needed, prefix="")
    parser = ResponseParser(CHAT, "")
    parser.finalize()
    with pytest.raises(RuntimeError):
        parser.feed("x")


def test_a_region_that_ends_with_nothing() -> None:
    """Nothing is found at the same place again and again."""
    fields = {"x": {"open_pattern": "a+", "close_pattern": ""}, "y": {"close_pattern": "b*"}}
    template = {"start_anchor": "q", "fields": fields}
    assert set(parse_response("caab" * 99, template, prefix="")) <= {"role", "x", "y"}


def test_many_literals_are_compared_in_time() -> None:
    start = time.process_time()
    found = Literals([f"<{number}>" for number in range(20_000)])
    assert time.process_time() - start < 2
    assert found.find("<19>", 0, is_complete=False) == (0, 4)
    assert Literals(["a", "<", "ab"]).find("a", 0, is_complete=False) == 0
