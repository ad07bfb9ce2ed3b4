"""Frames are read or described, whatever is in them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen import TokenLogprob, TopLogprob
from asyncgen_apps.websocket.errors import Fault
from asyncgen_apps.websocket.frames import encode, read, read_large
from asyncgen_apps.websocket.messages import SERVER_MESSAGE, Cancel, Error, Generate
from asyncgen_apps.websocket.params import check_params
from tests.cases import for_each

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
NAMES = st.sampled_from(["id", "prompt", "params", "nonce", "after", "resume_token", "events"])
TYPES = st.sampled_from(["generate", "cancel", "resume", "ping", "auth", "done", "", "Generate"])
MESSAGES = st.builds(
    lambda kind, fields: {"type": kind, **fields}, TYPES | JSON, st.dictionaries(NAMES, JSON)
)


def fault(frame: str | bytes) -> Fault:
    found = read(frame)
    assert isinstance(found, Fault)
    return found


@pytest.mark.gate
@settings(deadline=None, max_examples=300)
@given(st.text() | st.binary() | JSON.map(json.dumps) | MESSAGES.map(json.dumps))
def test_read_never_raises_and_every_fault_has_a_message(frame: str | bytes) -> None:
    found = read(frame)
    if isinstance(found, Fault):
        told = SERVER_MESSAGE.validate_json(encode(found.message_for(found.id)))
        assert isinstance(told, Error)
        assert told.id is None or 1 <= len(told.id) <= 64


@for_each(
    ("frame", "code", "param", "request_id"),
    [
        (b"{}", "unsupported_data", None, None),
        ("{", "invalid_json", None, None),
        ("[]", "invalid_message", None, None),
        ("{}", "invalid_message", None, None),
        ('{"type":"x"}', "unknown_type", None, None),
        ('{"type":"generate","id":"a"}', "invalid_message", None, "a"),
        ('{"type":"generate","id":"a","prompt":"x","temperature":1}', "invalid_message",
         "temperature", "a"),
        ('{"type":"generate","id":"a","messages":[7]}', "invalid_message", "messages[0]", "a"),
        ('{"type":"generate","id":"","prompt":"x"}', "invalid_message", "id", None),
        ('{"type":"cancel","id":"a","x":1}', "invalid_message", "x", None),
        ('{"type":"resume","id":"a","resume_token":"t"}', "invalid_message", "after", "a"),
    ],
)  # fmt: skip
def test_faults_say_where(
    frame: str | bytes, code: str, param: str | None, request_id: str | None
) -> None:
    found = fault(frame)
    assert (found.code, found.param, found.id) == (code, param, request_id)


@pytest.mark.gate
@settings(deadline=None, max_examples=300)
@given(st.text() | JSON.map(json.dumps) | MESSAGES.map(json.dumps))
def test_a_large_frame_is_read_as_a_small_one(frame: str) -> None:
    small, large = read(frame), read_large(frame)
    if isinstance(small, Generate):
        fault = check_params(small.params)
        small = small if fault is None else replace(fault, id=small.id)
    if isinstance(small, Fault):
        assert isinstance(large, Fault)
        assert (large.code, large.param, large.id) == (small.code, small.param, small.id)
    else:
        assert large == small


GENERATE = {"type": "generate", "id": "a", "prompt": "x"}
LONG: dict[str, tuple[dict[str, Any], str | None]] = {
    "values": ({**GENERATE, "params": {"stop": ["x"] * 999}}, None),
    "a big number at the end": ({**GENERATE, "params": {"stop": [0] * 999 + [2**64]}}, "stop"),
    "params": ({**GENERATE, "params": dict.fromkeys(map(str, range(999)), 0)}, "params"),
    "names": ({**dict.fromkeys(map(str, range(999)), 0), **GENERATE}, "0"),
    "lists": ({**GENERATE, "params": {"stop": [[]] * 999}}, None),
    "messages": ({"type": "generate", "id": "a", "messages": [{"content": ""}] * 999}, None),
}


@pytest.mark.parametrize("name", LONG)
def test_reading_a_large_frame_rests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message, param = LONG[name]
    rests: list[float] = []
    monkeypatch.setattr("asyncgen_apps.serving.time_slices.SLICE", 0.0)
    monkeypatch.setattr("asyncgen_apps.serving.time_slices.time.sleep", rests.append)
    found = read_large(json.dumps(message))
    assert len(rests) >= 999
    if param is None:
        assert isinstance(found, Generate)
        assert found.model_dump(exclude_unset=True) == message
    else:
        assert isinstance(found, Fault)
        assert (found.param, found.id) == (param, "a")


def test_a_frame_of_too_many_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncgen_apps.serving.sliced_json.MOST_NESTED", 99)
    found = read_large(json.dumps(LONG["lists"][0]))
    assert isinstance(found, Fault) and "99 lists and objects" in found.message


def test_a_client_does_not_get_its_secrets_back() -> None:
    assert "hush" not in fault('{"type":"auth","token":["hush"]}').message


def test_messages_pass() -> None:
    assert read('{"type":"cancel","id":"ä"}') == Cancel(id="ä")


def test_infinite_logprobs_are_encoded_as_null() -> None:
    entry = TokenLogprob(1, "a", float("-inf"), (TopLogprob(2, "b", -1.5),))
    assert json.loads(encode({"logprobs": (entry,), "text": "ä🦊"})) == {
        "logprobs": [
            {
                "token_id": 1,
                "token": "a",
                "logprob": None,
                "top": [{"token_id": 2, "token": "b", "logprob": -1.5}],
            }
        ],
        "text": "ä🦊",
    }


@for_each(
    ("frame", "name"),
    [
        ('{"type": "ping", "nonce": "a", "type": "ping"}', "type"),
        ('{"type": "generate", "id": "a", "prompt": "x", "prompt": "y"}', "prompt"),
        (
            '{"type": "generate", "id": "a", "prompt": "x", "params": {"seed": 1, "seed": 2}}',
            "seed",
        ),
        ('{"type": "generate", "id": "a", "prompt": "x", "i\\u0064": "b"}', "id"),
        (
            '{"type": "generate", "id": "a", "messages": [{"role": "a", "role": "b"}]}',
            "role",
        ),
    ],
)
def test_a_key_that_is_twice_is_refused_by_name(frame: str, name: str) -> None:
    for found in (read(frame), read_large(frame)):
        assert found == Fault("invalid_json", f"`{name}` is twice in one object")
