"""Wishes for a stream, names of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.openai_http.running import running
from tests.apps.openai_http.test_answer import scripted

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

TEXT: dict[str, Any] = {"model": "demo", "prompt": "a", "max_tokens": 3, "temperature": 0}


def test_several_names() -> None:
    with running(scripted(), model_names=("org/big", "small")) as served:
        listed = served.request("GET", "/v1/models").json()["data"]
        assert [model["id"] for model in listed] == ["org/big", "small"]
        assert served.request("GET", "/v1/models/org/big").status == 200
        for name in ("org/big", "small"):
            body = {"model": name, "prompt": [1], "max_tokens": 2}
            assert served.post("/completions", body).json()["model"] == name


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
def test_usage_is_told_where_it_is_asked_for(demo: Running, options: Any) -> None:
    body = {**TEXT, "stream": True, "stream_options": options}
    events = demo.post("/completions", body).events()
    assert events[-1] == "[DONE]"
    has_usage = bool(options and options["include_usage"])
    assert ("usage" in events[0]) == has_usage
    assert bool(events[-2].get("usage")) == has_usage


def test_counts_in_every_chunk_need_the_last_one(demo: Running) -> None:
    options = {"continuous_usage_stats": True}
    got = demo.post("/completions", {**TEXT, "stream": True, "stream_options": options})
    assert got.error["param"] == "stream_options.continuous_usage_stats"
