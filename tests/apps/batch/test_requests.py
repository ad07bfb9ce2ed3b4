"""Lines of a file of requests, and what they ask for."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from asyncgen_apps.batch import requests
from asyncgen_apps.batch.requests import (
    LineError,
    count_lines,
    custom_id_of,
    read_lines,
    understand,
    with_defaults,
)
from tests.cases import for_each

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODY = {"messages": [{"role": "user", "content": "a"}]}
REQUEST = {"custom_id": "a", "method": "POST", "url": CHAT, "body": BODY}


def test_lines_are_numbered_as_editors_do_and_sizes_add_up() -> None:
    content = b'"a"\n\n  \r\n"b"\r\n"c"'
    file = io.BytesIO(content)
    assert count_lines(file) == 3
    lines = list(read_lines(file))
    assert [(line.number, line.content) for line in lines] == [
        (1, b'"a"'),
        (4, b'"b"'),
        (5, b'"c"'),
    ]
    assert sum(line.size for line in lines) == len(content)
    assert len({line.digest for line in lines}) == 3 and all(line.digest for line in lines)
    unix = read_lines(io.BytesIO(content.replace(b"\r", b"")))
    assert [line.digest for line in unix] == [line.digest for line in lines]


def test_a_line_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_LINE_BYTES", 10)
    content = b'"' + b"a" * 1000 + b'"\n"b"\n'
    long, short = read_lines(io.BytesIO(content))
    assert (long.content, short.content) == (None, b'"b"')
    assert long.size + short.size == len(content)
    other = next(read_lines(io.BytesIO(content.replace(b'a"', b'c"'))))
    assert other.digest != long.digest
    with pytest.raises(LineError, match="longer than"):
        understand(None, {}, "demo")


@for_each(
    ("line", "path", "custom_id"),
    [
        ("a", TEXT, None),
        ({"prompt": "a", "top_k": 2}, TEXT, None),
        ({"prompt": [1, 2], "custom_id": "x"}, TEXT, "x"),
        (BODY, CHAT, None),
        (REQUEST, CHAT, "a"),
        ({**REQUEST, "url": TEXT, "body": {"prompt": "a", "model": "other"}}, TEXT, "a"),
    ],
)
def test_forms_of_a_line(line: Any, path: str, custom_id: str | None) -> None:
    request = understand(json.dumps(line).encode(), {"top_k": 5, "seed": 1}, "demo")
    assert (request.path, request.custom_id) == (path, custom_id)
    assert request.is_plain is (line == "a" or "url" not in line)
    given = {"prompt": "a"} if line == "a" else line.get("body", line)
    expected = {"model": "demo", "top_k": 5, "seed": 1, **given}
    expected.pop("custom_id", None)
    assert request.body == expected


@for_each(
    ("line", "code"),
    [
        (b"{", "invalid_json"),
        (b"\xff", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"1", "invalid_line"),
        (b"{}", "invalid_line"),
        ({"prompt": "a", "messages": []}, "invalid_line"),
        ({"prompt": "a", "custom_id": 5}, "invalid_custom_id"),
        ({**REQUEST, "custom_id": None}, "missing_custom_id"),
        ({**REQUEST, "method": "GET"}, "invalid_method"),
        ({**REQUEST, "url": "/v1/embeddings"}, "invalid_url"),
        ({**REQUEST, "url": ["/v1/completions"]}, "invalid_url"),
        ({**REQUEST, "body": "a"}, "invalid_body"),
        ({**REQUEST, "prority": 1}, "invalid_request"),
        ({"body": BODY}, "missing_custom_id"),
    ],
)
def test_malformed_lines_raise_line_error_with_code(line: Any, code: str) -> None:
    content = line if isinstance(line, bytes) else json.dumps(line).encode()
    with pytest.raises(LineError) as caught:
        understand(content, {}, "demo")
    assert caught.value.code == code
    custom_id_of(content)  # which never raises


@for_each(
    ("given", "left"),
    [
        ({}, {"max_new_tokens", "temperature", "min_new_tokens"}),
        ({"max_tokens": 5}, {"temperature", "min_new_tokens"}),
        ({"max_completion_tokens": 5, "min_tokens": 1}, {"temperature"}),
        ({"max_tokens": None}, {"max_new_tokens", "temperature", "min_new_tokens"}),
        ({"temperature": 0}, {"max_new_tokens", "min_new_tokens"}),
        ({"do_sample": False}, {"max_new_tokens", "min_new_tokens"}),
    ],
)
def test_a_default_yields_to_whatever_says_the_same(given: Any, left: set[str]) -> None:
    defaults = {"max_new_tokens": 9, "temperature": 0.5, "min_new_tokens": 2}
    found = with_defaults(defaults, given)
    assert found.keys() - given.keys() == left - given.keys()
    assert given.items() <= found.items()
    assert with_defaults({"do_sample": False}, {"top_p": 0.5}) == {"top_p": 0.5}


@for_each("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_lines_are_utf_8(encoding: str) -> None:
    content = json.dumps(REQUEST).encode(encoding)
    assert custom_id_of(content) is None
    with pytest.raises(LineError, match="not JSON"):
        understand(content, {}, "demo")
