"""Settings that cannot be are refused when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen_apps.openai_http.settings import ServerSettings


@pytest.mark.parametrize(
    "values",
    [
        {"model_names": ()},
        {"model_names": ("",)},
        {"api_keys": ("",)},
        {"api_keys": (" a",)},
        {"api_keys": ("ä",)},
        {"max_body_bytes": 0},
        {"max_requests": 0},
        {"ping_seconds": 0.0},
        {"stall_seconds": -1.0},
        {"body_seconds": 0.0},
    ],
)
def test_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        ServerSettings(**{"model_names": ("demo",), **values})


def test_open_by_default() -> None:
    assert ServerSettings(("demo",)).api_keys == ()
