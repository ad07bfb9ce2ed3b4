"""Messages are read strictly, and the committed schema describes what is read."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from pydantic import ValidationError

from asyncgen_apps.websocket.messages import CLIENT_MESSAGE, SERVER_MESSAGE, Generate, Resume
from asyncgen_apps.websocket.schema import FILE, protocol_schema, render
from tests.cases import for_each


def test_a_prompt_in_each_form() -> None:
    for field, value in (
        ('"prompt":"Hi"', "Hi"),
        ('"messages":[{"role":"user","content":"Hi"}]', [{"role": "user", "content": "Hi"}]),
        ('"token_ids":[1,2]', [1, 2]),
    ):
        read = CLIENT_MESSAGE.validate_json('{"type":"generate","id":"a",' + field + "}")
        assert isinstance(read, Generate)
        assert read.source == value


@for_each(
    "frame",
    [
        "",
        "nothing",
        "[]",
        "{}",
        '{"type":"generate"}',
        '{"type":"sing"}',
        '{"type":7}',
        '{"type":"ping","nonce":1.0}',
        '{"type":"ping","nonce":true}',
        '{"type":"ping","nonce":99999999999999999999}',
        '{"type":"cancel","id":1}',
        '{"type":"cancel","id":"a","also":1}',
        '{"type":"cancel","id":"' + "a" * 65 + '"}',
        '{"type":"resume","id":"a","resume_token":"t","after":"1"}',
        '{"type":"resume","id":"a","resume_token":"t","after":1e400}',
        '{"type":"generate","id":"a","prompt":""}',
        '{"type":"generate","id":"a","messages":[]}',
        '{"type":"generate","id":"a","token_ids":[-1]}',
        '{"type":"generate","id":"a","token_ids":[1e3]}',
        '{"type":"generate","id":"a","token_ids":[true]}',
        '{"type":"generate","id":"a","prompt":"Hi","params":[]}',
        '{"type":"generate","id":"a","prompt":"Hi","events":"bytes"}',
        '{"type":"generate","id":"a","prompt":"Hi","params":' + "[" * 500 + "]" * 500 + "}",
        '{"type":"generate","id":"a","prompt":"\\ud800"}',
    ],
)
def test_malformed_frames_are_refused(frame: str) -> None:
    with pytest.raises(ValidationError):
        CLIENT_MESSAGE.validate_json(frame)


def test_messages_survive_json_dump_and_validation() -> None:
    resume = Resume(id="a", resume_token="t", after=3)
    assert CLIENT_MESSAGE.validate_json(resume.model_dump_json()) == resume
    pong = '{"type":"pong","nonce":"x"}'
    assert SERVER_MESSAGE.validate_json(pong).model_dump_json() == pong


def test_the_file_is_fresh() -> None:
    assert FILE.read_text(encoding="utf-8") == render(), (
        "run `python -m asyncgen_apps.websocket.schema --write`"
    )


@for_each(
    ("message", "fits"),
    [
        ({"type": "generate", "id": "a", "prompt": "Once"}, True),
        ({"type": "generate", "id": "a", "prompt": "Once", "token_ids": [1]}, False),
        ({"type": "generate", "id": "a", "prompt": None, "token_ids": [1]}, True),
        ({"type": "generate", "id": "a", "prompt": None}, False),
        ({"type": "generate", "id": "a"}, False),
        ({"type": "generate", "id": "", "prompt": "Once"}, False),
        ({"type": "resume", "id": "a", "resume_token": "t", "after": 3}, True),
        ({"type": "resume", "id": "a", "resume_token": "t", "after": -1}, False),
        ({"type": "ping", "nonce": 7, "extra": 1}, False),
    ],
)
def test_schema_and_models_agree(message: dict[str, object], fits: bool) -> None:
    schema = {"$ref": "#/$defs/ClientMessage", "$defs": protocol_schema()["$defs"]}
    assert jsonschema_rs.Draft202012Validator(schema).is_valid(message) is fits
    try:
        CLIENT_MESSAGE.validate_json(json.dumps(message))
    except ValueError:
        assert not fits
    else:
        assert fits
