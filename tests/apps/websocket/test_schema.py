"""The committed schema is that of the models, and it describes what the models take."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from asyncgen_apps.websocket.messages import CLIENT_MESSAGE
from asyncgen_apps.websocket.schema import FILE, protocol_schema, render


def test_the_file_is_fresh() -> None:
    assert FILE.read_text(encoding="utf-8") == render(), (
        "run `python -m asyncgen_apps.websocket.schema --write`"
    )


@pytest.mark.parametrize(
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
