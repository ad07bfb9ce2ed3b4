"""Frames are read or described, whatever is in them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen import TokenLogprob, TopLogprob
from asyncgen_apps.websocket.failures import Fault
from asyncgen_apps.websocket.messages import SERVER_MESSAGE, Cancel, Error
from asyncgen_apps.websocket.wire import encode, read

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


@settings(deadline=None, max_examples=300)
@given(st.text() | st.binary() | JSON.map(json.dumps) | MESSAGES.map(json.dumps))
def test_nothing_raises_and_every_fault_can_be_told(frame: str | bytes) -> None:
    found = read(frame)
    if isinstance(found, Fault):
        told = SERVER_MESSAGE.validate_json(encode(found.message_for(found.id)))
        assert isinstance(told, Error)
        assert told.id is None or 1 <= len(told.id) <= 64


@pytest.mark.parametrize(
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


def test_a_client_does_not_get_its_secrets_back() -> None:
    assert "hush" not in fault('{"type":"auth","token":["hush"]}').message


def test_messages_pass() -> None:
    assert read('{"type":"cancel","id":"ä"}') == Cancel(id="ä")


def test_what_is_not_a_number() -> None:
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
