"""Test the largest request: all that the model can use fits, and no more is read."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from asyncgen import EngineClosedError
from asyncgen_apps.openai_http.request_schema import ChatCompletionRequest, CompletionRequest
from asyncgen_apps.serving.limits import MOST_SAMPLES, longest_request
from tests.cases import for_each
from tests.doubles.models import byte_tokenizer

if TYPE_CHECKING:
    from asyncgen_apps.engine import Engine

CONTEXT, VOCABULARY = 512, 1024
MANY = 10**9
BYTES = byte_tokenizer()


def engine(tokenizer: object = BYTES, **config: object) -> Engine:
    """As much of an engine as is looked at."""
    shape = {"max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY, **config}
    return cast("Engine", SimpleNamespace(tokenizer=tokenizer, config=SimpleNamespace(**shape)))


IDS = [VOCABULARY - 1] * CONTEXT
EVERY = list(range(VOCABULARY))
ASKED: dict[str, dict[str, Any]] = {
    "a text": {"prompt": "\0" * CONTEXT * (BYTES.longest_token or 0)},
    "ids": {"prompt": IDS},
    "messages": {
        "messages": [
            {"role": "assistant", "content": "\0", "refusal": None, "tool_calls": []}
            for _ in range(CONTEXT)
        ]
    },
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "\0"}] * CONTEXT}]
    },
    "biases": {"prompt": "x", "logit_bias": {str(one): -1 / 3 for one in EVERY}},
    "sequences": {"prompt": "x", "sequence_bias": [[[one], -1 / 3] for one in EVERY]},
    "bans": {"prompt": "x", "suppress_tokens": EVERY, "bad_words_ids": [[one] for one in EVERY]},
    "going on": {"prompt": IDS, "n": MOST_SAMPLES, "generated_ids": [IDS] * MOST_SAMPLES},
}


@for_each("name", ASKED)
def test_requests_the_model_can_use_fit_the_size_limit(name: str) -> None:
    fields = {"model": "demo", **ASKED[name]}
    kind = ChatCompletionRequest if "messages" in fields else CompletionRequest
    kind.model_validate(fields)
    assert len(json.dumps(fields)) <= longest_request(engine(), MANY)


def test_it_follows_the_model() -> None:
    usual = longest_request(engine(), MANY)
    assert longest_request(engine(max_position_embeddings=2 * CONTEXT), MANY) > usual
    assert longest_request(engine(vocab_size=2 * VOCABULARY), MANY) > usual
    assert longest_request(engine(), MANY, prompts=2) > usual
    assert longest_request(engine(), usual - 1) == usual - 1


def test_models_without_a_limit() -> None:
    for each in (engine(max_position_embeddings=None), engine(vocab_size=None), engine(object())):
        assert longest_request(each, 77) == 77
        assert longest_request(each, MANY) == MANY
    cut = byte_tokenizer()
    cut.backend_tokenizer.enable_truncation(5)
    assert longest_request(engine(cut), MANY) == MANY


def test_an_engine_that_is_closed() -> None:
    class Closed:
        @property
        def config(self) -> object:
            raise EngineClosedError("closed")

    assert longest_request(cast("Engine", Closed()), 77) == 77
