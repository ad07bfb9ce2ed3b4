"""Answers in a shape through every door: the same tokens, in any mix, and never half a shape."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.llm.llm import LLM, AsyncLLM
from tests.cases import for_each
from tests.doubles.models import TableModel, byte_tokenizer
from tests.engine.batches import Bench, alone, ids_of

if TYPE_CHECKING:
    from tests.doubles.sinks import RecordingSink

pytestmark = pytest.mark.anyio

EOS = 256
MODEL = TableModel(eos_bias=0.5)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{0,6}$"},
        "kind": {"enum": ["red", "grün", "blue"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "kind", "n"],
    "additionalProperties": False,
}
ASKED: list[dict[str, Any]] = [
    {"json_schema": SCHEMA},
    {"json_schema": SCHEMA, "temperature": 1.5, "seed": 3},
    {"json_schema": SCHEMA, "temperature": 1.5, "seed": 4, "top_k": 5, "n": 3},
    {"json_schema": SCHEMA, "temperature": 1.5, "seed": 4, "top_p": 0.9, "repetition_penalty": 1.3},
    {"choice": ["a long text indeed", "a long walk", "b"], "temperature": 2.0, "seed": 1},
    {"regex": "(ab|cd){2,9}", "temperature": 1.5, "seed": 9, "bad_words_ids": [[ord("b")]]},
    {"grammar": 'root ::= "[" [0-9]+ ("," root)? "]"', "temperature": 1.0, "seed": 5},
    {"regex": "[a-f]*", "temperature": 1.0, "seed": 5, "min_new_tokens": 5},
]


def is_valid(value: Any) -> bool:
    """Tell whether a value follows the schema."""
    import jsonschema_rs

    return jsonschema_rs.is_valid(SCHEMA, value)


def end_of(sink: RecordingSink) -> str | None:
    """Return the end of a request."""
    last = sink.items[-1]
    assert not isinstance(last, BaseException), last
    return last.finish_reason


@for_each("given", ASKED, ids=str)
def test_stream_logprobs_and_side_lane_give_the_same_tokens(given: dict[str, Any]) -> None:
    """One by one (where log-probabilities are asked for), in one go, and beside the batch."""
    given = {**given, "max_new_tokens": 90}
    found = []
    for further in ({}, {"logprobs": True}):
        bench = Bench(MODEL, pages=200)
        request, sink = bench.add("abc", **given, **further)
        bench.run()
        found.append([ids_of(sink, index) for index in range(request.params.num_samples)])
        bench.require_empty()
    assert found[0] == found[1]
    assert found[0] == alone(MODEL, "abc", **given, cache_implementation="dynamic")


def test_forced_tokens_take_no_step() -> None:
    steps = []
    for further in ({}, {"logprobs": True}):
        bench = Bench(MODEL, pages=200)
        _, sink = bench.add("abc", json_schema=SCHEMA, seed=1, temperature=1.0, **further)
        bench.run()
        steps.append(bench.num_steps)
        assert end_of(sink) == "stop"
    assert steps[1] == len(ids_of(sink))
    assert steps[0] <= steps[1] - len('"name": ""kind": ""n": ') + 3


def test_rows_without_a_shape_do_not_wait_for_what_is_forced() -> None:
    """Beside them one forced token a step is computed, and the answer is the same."""
    answers, most = [], []
    for count in (0, 3):
        bench = Bench(MODEL, pages=200)
        _, sink = bench.add("abc", json_schema=SCHEMA, seed=1, temperature=1.0)
        for _ in range(count):
            bench.add("abc", min_new_tokens=100, max_new_tokens=100)
        sizes = []
        while True:
            rows = bench.batch.step()
            if not rows:
                break
            sizes.append(sum(row.count for row in rows if row.start > 3) - len(rows))
        bench.require_empty()
        answers.append(ids_of(sink))
        most.append(max(sizes))
    assert answers[0] == answers[1]
    assert most[0] > 5 and most[1] == 1


def test_mixes_with_preemption_change_no_token() -> None:
    """Few pages, rows with and without a shape; those without are what they were."""
    free: dict[str, Any] = {"temperature": 1.3, "max_new_tokens": 40}
    asked = [{**given, "max_new_tokens": 60} for given in ASKED if "n" not in given]
    mixed = [each for pair in zip(asked, [free] * len(asked), strict=True) for each in pair]
    mixed = [{**given, "seed": number} for number, given in enumerate(mixed)]
    expected = []
    for given in mixed:
        bench = Bench(MODEL, pages=200)
        _, sink = bench.add("abc", **given)
        bench.run()
        expected.append(ids_of(sink))
    bench = Bench(MODEL, pages=48, max_running=8)
    sinks = [bench.add("abc", **given)[1] for given in mixed]
    bench.run()
    assert [ids_of(sink) for sink in sinks] == expected
    assert bench.batch.scheduler.num_preemptions > 0
    bench.require_empty()


@pytest.mark.parametrize("given", [ASKED[1], ASKED[4], ASKED[6]], ids=str)
def test_stream_resumes_after_given_tokens(given: dict[str, Any]) -> None:
    bench = Bench(MODEL, pages=200)
    _, sink = bench.add("abc", **given)
    bench.run()
    whole = ids_of(sink)
    for count in range(0, len(whole), 3):
        _, rest = bench.add("abc", **given, generated_ids=whole[:count])
        bench.run()
        assert whole[:count] + ids_of(rest) == whole
        assert end_of(rest) == "stop"
    _, rest = bench.add("abc", **given, generated_ids=whole)
    bench.run()
    assert ids_of(rest) == [] and end_of(rest) == "stop"
    with pytest.raises(InvalidRequestError, match="`generated_ids`.*no beginning of an answer"):
        bench.add("abc", **given, generated_ids=[*whole[:-1], 1])


@for_each("further", [{}, {"cache_implementation": "dynamic"}, {"num_beams": 2}])
async def test_finish_reasons_say_whether_the_shape_is_there(further: dict[str, Any]) -> None:
    async with AsyncLLM(MODEL, tokenizer=byte_tokenizer()) as llm:
        given = {"json_schema": SCHEMA, "max_new_tokens": 90, **further}
        whole = await llm.generate("abc", **given)
        assert whole.finish_reason == "stop" and whole.parse_error is None
        assert is_valid(whole.parsed) and whole.parsed == json.loads(whole.text)
        short = await llm.generate("abc", **{**given, "max_new_tokens": 7})
        assert (short.finish_reason, short.parsed) == ("length", None)
        assert short.parse_error is not None and len(short.token_ids) == 7
        if "num_beams" not in further:
            for stop in ({"stop": "kind"}, {"stop_strings": ["kind"]}):
                cut = await llm.generate("abc", **given, **stop)
                assert (cut.finish_reason, cut.parsed) == ("incomplete", None)


async def test_partial_values_grow_into_the_whole() -> None:
    async with AsyncLLM(MODEL, tokenizer=byte_tokenizer()) as llm:
        stream = llm.stream("abc", json_schema=SCHEMA, max_new_tokens=90)
        values = [value async for value in stream.partial()]
        names = [value.get("name", "") for value in values]
        assert all(map(str.startswith, names[1:], names))
        assert values[-1] == stream.result.parsed
        with pytest.raises(InvalidRequestError, match="needs a format"):
            llm.stream("abc").partial()
        regex = "[a-z]{3}"
        completion = await llm.generate("abc", regex=regex)
        assert completion.parsed == completion.text


def test_partial_values_without_an_event_loop() -> None:
    with LLM(MODEL, tokenizer=byte_tokenizer()) as llm:
        stream = llm.stream("abc", json_schema=SCHEMA, max_new_tokens=90)
        assert list(stream.partial())[-1] == stream.result.parsed


@for_each(
    "further",
    [
        {"penalty_alpha": 0.5, "top_k": 4},
        {"forced_eos_token_id": EOS},
        {"custom_generate": lambda model, input_ids, **_: input_ids},
        {"choice": ["a"]},
    ],
    ids=lambda further: next(iter(further)),
)
async def test_strategies_with_own_token_rules_refuse_a_regex(further: dict[str, Any]) -> None:
    async with AsyncLLM(MODEL, tokenizer=byte_tokenizer()) as llm:
        with pytest.raises(InvalidRequestError):
            await llm.generate("abc", regex="a+", **further)


async def test_drafts_change_no_token_of_a_shape() -> None:
    async with AsyncLLM(MODEL, tokenizer=byte_tokenizer()) as llm:
        given: dict[str, Any] = {"json_schema": SCHEMA, "max_new_tokens": 90, "do_sample": False}
        plain = await llm.generate("abc", **given)
        drafted = await llm.generate("abc", **given, prompt_lookup_num_tokens=4)
        assert drafted.token_ids == plain.token_ids
        assert drafted.parsed == plain.parsed
