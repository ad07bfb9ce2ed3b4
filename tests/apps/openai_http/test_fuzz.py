"""Whatever a body may hold: a refusal that says what is wrong, no 5xx, and no hang."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import for_each

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

FEW = pytest.mark.timeout(240)
MANY = [pytest.mark.soak, pytest.mark.timeout(900)]


def bounded(body: Any) -> Any:
    """Ask a model that is there, for little, so that the request gets as far as it can."""
    if isinstance(body, dict) and "model" in body:
        body = {**body, "model": "demo"}
        if isinstance(body.get("n"), int):
            body["n"] = min(body["n"], 2)
        names = ("max_tokens", "max_completion_tokens", "max_new_tokens", "max_length")
        for name in names:
            if isinstance(body.get(name), int):
                body[name] = min(body[name], 20)
        if not any(isinstance(body.get(name), int) for name in names):
            body["max_tokens"] = 3
    return body


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    "temperature top_p top_k n seed stop logprobs top_logprobs logit_bias stream stream_options "
    "min_p repetition_penalty bad_words_ids sequence_bias suppress_tokens eos_token_id max_time "
    "num_beams penalty_alpha dola_layers exponential_decay_length_penalty priority messages "
    "presence_penalty frequency_penalty min_tokens guidance_scale forced_eos_token_id "
    "xtc_probability dry_multiplier dry_sequence_breakers top_n_sigma dynatemp_range mirostat "
    "repeat_last_n reasoning_budget context_overflow truncation".split()
)


@pytest.mark.parametrize("examples", [pytest.param(40, marks=FEW), pytest.param(1500, marks=MANY)])
def test_any_value_of_any_field(demo: Running, examples: int) -> None:
    @given(fields=st.dictionaries(FIELDS, JSON | st.integers(-5, 300), max_size=2))
    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    def send(fields: dict[str, Any]) -> None:
        turn = {"role": "user", "content": "hi"}
        body = {"messages": [turn], "max_tokens": 3, **fields, "model": "demo"}
        got = demo.post("/chat/completions", bounded(body))
        assert got.status in (200, 400), got.body
        if got.status == 400:
            assert got.error["message"]

    send()
    demo.wait_idle()


@for_each(
    "raw",
    [
        *(b"", b"{", b"[]", b'"x"', b"null", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b"NaN"),
        b'{"seed":1' + b"0" * 5000 + b"}",
    ],
    ids=lambda raw: raw[:8].hex() or "nothing",
)
def test_bodies_that_are_no_request(demo: Running, raw: bytes) -> None:
    got = demo.post("/chat/completions", raw)
    assert got.status == 400
    assert got.error["type"] == "invalid_request_error"
    assert "the body" in got.error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"x" * 100_000: 1},
        {"model": "x" * 100_000},
        {"logit_bias": {"x" * 100_000: 1}},
        {"watermarking_config": {"x" * 100_000: 1}},
        {"watermarking_config": {"seeding_scheme": "x" * 100_000}},
        {"stream_options": {"x" * 100_000: 1}},
        {"chat_template_kwargs": {"x" * 100_000: 1}},
        {"context_overflow": "x" * 100_000},
        {"tool_choice": {"x" * 100_000: 1}},
        {"response_format": {"type": "x" * 100_000}},
        {"regex": "(" + "x" * 100_000},
    ],
    ids=lambda fields: str(fields)[:60],
)
def test_words_of_any_length_are_not_repeated(demo: Running, fields: dict[str, Any]) -> None:
    turn = {"role": "user", "content": "hi"}
    got = demo.post("/chat/completions", {"model": "demo", "messages": [turn], **fields})
    assert got.status in (400, 404)
    assert len(got.body) < 1000


HOSTILE = [
    ("temperature", 5e-324, "temperature"),
    ("guidance_scale", 1e308, "guidance_scale"),
    ("force_words_ids", [[2**63 - 1]], "force_words_ids"),
    ("min_length", 2**63 - 1, "min_length"),
    ("seed", 2**64, "seed"),
    ("max_tokens", 2**63, "max_tokens"),
    ("logit_bias", {"1": float("nan")}, "logit_bias"),
    ("top_k", True, "top_k"),
    ("stop_strings", [""], "stop_strings"),
    ("negative_prompt_ids", [10**400], "negative_prompt_ids[0]"),
]


def test_hostile_values_are_refused_by_name_beside_a_stream(demo: Running) -> None:
    story = {"model": "demo", "prompt": "Once", "max_tokens": 40, "temperature": 0}
    alone = demo.post("/completions", story).json()["choices"]
    wire = demo.begin("/completions", story)
    try:
        for name, value, param in HOSTILE:
            fields: dict[str, Any] = {"max_tokens": 4, name: value}
            if name == "force_words_ids":
                fields |= {"num_beams": 2, "do_sample": False}
            got = demo.post("/completions", {"model": "demo", "prompt": "Once", **fields})
            assert (got.status, got.error["param"]) == (400, param), got.body
        reply = b""
        while b'"usage"' not in reply:
            piece = wire.recv(65536)
            assert piece
            reply += piece
    finally:
        wire.close()
    assert json.dumps(alone[0]["text"]).encode() in reply
    assert demo.llm.is_healthy
    demo.wait_idle()


@pytest.mark.gate
def test_end_tokens_named_often_cost_a_step_nothing(demo: Running) -> None:
    fields = {"eos_token_id": [3] * 2**18, "suppress_tokens": [4] * 2**18}
    asked = {"model": "demo", "prompt": "Once", "seed": 1, **fields, "max_tokens": 40}
    few = {name: value[:1] for name, value in fields.items()}
    text = demo.post("/completions", asked).json()["choices"][0]["text"]
    assert text == demo.post("/completions", {**asked, **few}).json()["choices"][0]["text"]
