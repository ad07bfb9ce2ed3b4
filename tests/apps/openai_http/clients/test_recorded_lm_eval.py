"""Replay requests of lm-evaluation-harness: the scores equal those of transformers' model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.apps.openai_http.clients.recorded import read
from tests.apps.openai_http.clients.scored import scored
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.running import Running

RECORDED = read("lm_eval")


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[Running, Any]]:
    transformers = pytest.importorskip("transformers")
    with scored() as (served, folder):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        yield served, model.eval()


def require_scores(choice: Any, ids: list[int], model: Any) -> None:
    """Hold a choice against the log-softmax, as the harness reads both."""
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    lists = choice["logprobs"]
    own = expected[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
    found = lists["token_logprobs"][1:-1]  # behind them one that was generated
    assert len(found) == len(ids) - 1
    assert found == pytest.approx(own.tolist(), abs=1e-4)
    likeliest = [max(top.values()) for top in lists["top_logprobs"][1:-1]]
    greedy = [one == best for one, best in zip(found, likeliest, strict=True)]
    assert greedy == (expected[:-1].argmax(-1) == torch.tensor(ids[1:])).tolist()
    assert likeliest == pytest.approx(expected[:-1].max(-1).values.tolist(), abs=1e-4)


@for_each("name", sorted(RECORDED))
def test_every_request_is_answered(place: tuple[Running, Any], name: str) -> None:
    served, model = place
    tokenizer = served.llm.tokenizer
    assert RECORDED[name]
    for sent in RECORDED[name]:
        reply = served.request(sent.method, sent.path, sent.body, sent.headers)
        if sent.method == "GET":  # whether the server has a tokenizer for it: it has its own
            assert reply.status == 404
            continue
        assert reply.status == 200, reply.json()
        body, choices = sent.json(), reply.json()["choices"]
        if "messages" in body:
            assert choices[0]["message"]["content"]
            continue
        given = body["prompt"]
        several = isinstance(given, list) and not isinstance(given[0], int)
        prompts = given if several else [given]
        assert len(choices) == len(prompts)
        for prompt, choice in zip(prompts, choices, strict=True):
            ids = tokenizer.encode_ids(prompt) if isinstance(prompt, str) else prompt
            if body.get("echo"):
                text = tokenizer.decode(ids, skip_special_tokens=True)
                assert choice["text"].startswith(text)
                require_scores(choice, ids, model)
                continue
            count, start = body["max_tokens"], torch.tensor([ids])
            said = model.generate(start, do_sample=False, max_new_tokens=count)
            text = tokenizer.decode(said[0, len(ids) :].tolist(), skip_special_tokens=True)
            assert choice["text"] == text.partition(".")[0]
