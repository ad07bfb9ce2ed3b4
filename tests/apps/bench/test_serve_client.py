"""The client of the benchmark counts, times and complains."""

from __future__ import annotations

import anyio
import pytest

from asyncgen_apps.bench.serve_client import ask_all
from tests.apps.openai_http.running import running
from tests.apps.openai_http.test_answer import scripted

BODY: dict[str, object] = {
    "model": "demo",
    "prompt": [1],
    "max_tokens": 5,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}


def test_it_times_every_stream() -> None:
    with running(scripted()) as served:
        asked = anyio.run(ask_all, served.port, [BODY] * 3, 5)
        assert len(asked.first) == 3
        assert all(0 < first <= asked.total for first in asked.first)


@pytest.mark.parametrize(
    ("body", "tokens", "told"),
    [(BODY, 6, "another length"), ({**BODY, "tools": [1]}, 5, "no stream")],
)
def test_it_complains(body: dict[str, object], tokens: int, told: str) -> None:
    with running(scripted()) as served, pytest.raises(ExceptionGroup) as failed:
        anyio.run(ask_all, served.port, [body], tokens)
    assert told in str(failed.value.exceptions[0])
