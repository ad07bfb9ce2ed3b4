"""Test pickling of the applications' messages, settings and errors."""

from __future__ import annotations

import pickle
from typing import Any

from asyncgen_apps.openai_http import ServerSettings
from asyncgen_apps.websocket import (
    ConnectionLostError,
    RemoteError,
    StreamSettings,
    UnauthorizedError,
)
from asyncgen_apps.websocket.messages import Hello, Limits
from tests.cases import for_each

LIMITS = Limits(
    max_message_bytes=1,
    max_requests=2,
    max_prompt_tokens=None,
    grace_seconds=3.0,
    replay_bytes=4,
)
VALUES: list[Any] = [
    Hello(model="demo", limits=LIMITS, heartbeat_seconds=20.0, authenticated=True),
    StreamSettings(tokens=("k",), origins=("https://a.example",)),
    ServerSettings(model_names=("demo",), api_keys=("k",)),
]
ERRORS = [
    RemoteError("internal", "oops"),
    ConnectionLostError("gone"),
    UnauthorizedError("who are you?"),
]


@for_each("value", VALUES, ids=lambda one: type(one).__name__)
def test_values(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value


@for_each("error", ERRORS, ids=lambda one: type(one).__name__)
def test_errors(error: Exception) -> None:
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)
