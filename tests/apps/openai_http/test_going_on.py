"""A request over HTTP goes on behind tokens that it has: token ids in replies, and in requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.cases import for_each

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

TEXT: dict[str, Any] = {
    "model": "demo",
    "prompt": "Once upon a time",
    "max_tokens": 20,
    "temperature": 0.9,
    "seed": 11,
    "frequency_penalty": 0.5,
}
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": "A story about a fox."}],
    "max_tokens": 20,
    "temperature": 0.9,
    "seed": 11,
}
ROUTES = [("/completions", TEXT), ("/chat/completions", CHAT)]


def text_of(choice: dict[str, Any]) -> str:
    found: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return found


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_first_tokens_and_rest_are_the_whole(
    demo: Running, path: str, body: dict[str, Any]
) -> None:
    whole = demo.post(path, {**body, "return_token_ids": True}).json()
    (choice,) = whole["choices"]
    ids, print_ = choice["token_ids"], demo.llm.fingerprint
    assert len(ids) == whole["usage"]["completion_tokens"]
    assert whole["usage"]["fingerprint"] == print_
    for cut in (1, 7, len(ids)):
        more = {"generated_ids": ids[:cut], "return_token_ids": True, "fingerprint": print_}
        rest = demo.post(path, {**body, **more}).json()
        (behind,) = rest["choices"]
        assert ids[:cut] + behind["token_ids"] == ids
        assert text_of(choice).endswith(text_of(behind))
        assert behind["finish_reason"] == choice["finish_reason"]
        assert rest["usage"] == whole["usage"]
    assert demo.post(path, {**body, "generated_ids": ids[:2]}).json()["usage"]["exact"] is False


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_stream_returns_token_ids_of_prompt_and_answer(
    demo: Running, path: str, body: dict[str, Any]
) -> None:
    more = {"return_token_ids": True, "n": 2}
    whole = demo.post(path, {**body, **more}).json()
    *events, end = demo.post(path, {**body, **more, "stream": True}).events()
    assert end == "[DONE]"
    for index, choice in enumerate(whole["choices"]):
        told = [one for event in events for one in event["choices"] if one["index"] == index]
        ids = [token for one in told for token in one.get("token_ids", ())]
        assert ids == choice["token_ids"]
    prompts = {
        tuple(one["prompt_token_ids"])
        for event in events
        for one in (event, *event["choices"])
        if "prompt_token_ids" in one
    }
    expected = whole.get("prompt_token_ids") or whole["choices"][0]["prompt_token_ids"]
    assert prompts == {tuple(expected)}
    assert len(expected) == whole["usage"]["prompt_tokens"]


def test_every_choice_has_its_tokens(demo: Running) -> None:
    for more in ({"n": 2}, {"n": 2, "temperature": 0}):
        asked = {**TEXT, **more, "return_token_ids": True}
        whole = demo.post("/completions", asked).json()["choices"]
        lists = [choice["token_ids"][:cut] for choice, cut in zip(whole, (3, 8), strict=True)]
        rest = demo.post("/completions", {**asked, "generated_ids": lists}).json()["choices"]
        for choice, first, behind in zip(whole, lists, rest, strict=True):
            assert first + behind["token_ids"] == choice["token_ids"]


@for_each(
    "more",
    [
        {"generated_ids": [[1], [2]]},
        {"generated_ids": "1"},
        {"generated_ids": [99999]},
        {"generated_ids": [1] * 30},
        {"generated_ids": [1], "prompt": ["a", "b"]},
        {"generated_ids": [1], "num_beams": 2, "temperature": None, "frequency_penalty": None},
    ],
)
def test_impossible_generated_ids_are_refused(demo: Running, more: dict[str, Any]) -> None:
    refused = demo.post("/completions", {**TEXT, **more})
    assert refused.status == 400
    assert refused.error["param"] == "generated_ids"


def test_models_tell_the_fingerprint(demo: Running) -> None:
    (model,) = demo.request("GET", "/v1/models").json()["data"]
    assert model["fingerprint"] == demo.llm.fingerprint


def test_counts_in_every_chunk_are_those_of_the_whole(demo: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    more = {"generated_ids": [5, 6, 7], "stream": True, "stream_options": options}
    events = demo.post("/completions", {**TEXT, **more}).events()[:-1]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert 3 < counts[0] <= 5
    assert counts == sorted(counts)
    assert counts[-2:] == [20, 20]
