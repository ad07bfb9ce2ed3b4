"""Settings are checked when they are made."""

from __future__ import annotations

import pytest

from asyncgen_apps.websocket.settings import StreamSettings


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model_name": ""}, "model_name"),
        ({"tokens": ("",)}, "tokens"),
        ({"tokens": ("se cret",)}, "tokens"),
        ({"tokens": ("sécret",)}, "tokens"),
        ({"max_connections": 0}, "max_connections is 0"),
        ({"max_prompt_tokens": -1}, "max_prompt_tokens is -1"),
        ({"heartbeat_seconds": 0}, "heartbeat_seconds is 0"),
        ({"send_seconds": float("inf")}, "send_seconds is inf"),
        ({"grace_seconds": float("nan")}, "grace_seconds is nan"),
        ({"drain_seconds": -1}, "from 0"),
    ],
)
def test_what_cannot_be(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said) as refused:
        StreamSettings(**wrong)  # type: ignore[arg-type]
    assert "cret" not in str(refused.value)


def test_zero_where_it_means_something() -> None:
    settings = StreamSettings(grace_seconds=0, drain_seconds=0, kept_bytes=0)
    assert settings.limits.grace_seconds == 0
