"""Beam search: laws of its streams, of cancelling it, and of single beams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.generation.stopping.criteria import MaxTimeCriteria
from asyncgen.generation.strategies.beam import beam_rules, beam_search
from asyncgen.generation.strategies.token_by_token import greedy
from tests.cases import for_each
from tests.doubles.models import EOS, PAD, TableModel
from tests.generation.strategies.laws import Recorder, check_interrupted, check_stream
from tests.generation.strategies.plans import plan_of

if TYPE_CHECKING:
    from asyncgen.generation.strategies.step import Step

PROMPT = torch.tensor([[1, 2, 3]])


def _drain(steps: Any) -> tuple[list[Step], Any]:
    found = []
    while True:
        try:
            found.append(next(steps))
        except StopIteration as end:
            return found, end.value


OPTIONS: list[dict[str, Any]] = [
    {},
    {"early_stopping": True},
    {"early_stopping": "never", "length_penalty": 0.2},
    {"length_penalty": -1.0},
    {"length_penalty": 3.0, "num_return_sequences": 1},
    {"no_repeat_ngram_size": 1},
]


@for_each("seed", range(6))
@for_each("options", OPTIONS)
def test_the_stream_joins_to_the_result_and_cancels_to_a_prefix(
    seed: int, options: dict[str, Any]
) -> None:
    model = TableModel(seed=seed, eos_bias=2.0)
    call = {"max_new_tokens": 14, "num_beams": 2 + seed % 3, **options}
    check_stream(model, PROMPT, call)


@pytest.mark.gate
def test_most_ids_come_long_before_the_end() -> None:
    early = []
    for seed in range(8):
        call = {"max_new_tokens": 40, "num_beams": 3}
        whole = check_stream(TableModel(seed=seed), PROMPT, call)
        early.append(40 - len(whole.values[-1]))
    assert sorted(early)[4] > 30


@pytest.mark.parametrize("options", OPTIONS[:3])
def test_cancelled_between_any_two_steps(options: dict[str, Any]) -> None:
    call = {"max_new_tokens": 9, "num_beams": 3, **options}
    check_interrupted(TableModel(seed=4, eos_bias=2.0), PROMPT, call)


def test_a_hypothesis_that_ended_early_wins_and_is_streamed() -> None:
    early = 0
    for seed in range(12):
        recorder = Recorder()
        model = TableModel(seed=seed, eos_bias=3.0)
        call: dict[str, Any] = {"max_new_tokens": 12, "num_beams": 3, "length_penalty": 0.3}
        before = model.num_forwards
        ids: Any = model.generate(PROMPT, streamer=recorder, **call)
        assert recorder.ids == ids[0, 3:].tolist()
        early += len(recorder.ids) < model.num_forwards - before
    assert early >= 3


@for_each("seed", range(10))
def test_one_beam_is_greedy(seed: int) -> None:
    model = TableModel(seed=seed, eos_bias=3.0)
    fields = {"num_beams": 1, "early_stopping": True}
    found, one = _drain(beam_search(plan_of(model, [[1, 2]], new_tokens=15, fields=fields)))
    steps, expected = _drain(greedy(plan_of(model, [[1, 2]], new_tokens=15)))
    assert one.sequences.tolist() == expected.sequences.tolist()
    streamed = [token for step in found for token in step.token_ids[0]]
    assert streamed == [token for step in steps for token in step.token_ids[0]]
    assert found[-1].reasons == steps[-1].reasons


@pytest.mark.parametrize("chunk", [1, 2, None])
def test_the_prompt_is_read_once_and_in_chunks(chunk: int | None) -> None:
    model = TableModel()
    fields = {"num_beams": 3}
    plan = plan_of(model, [[1, 2, 3, 4]], new_tokens=3, fields=fields, prefill_chunk=chunk)
    steps, outcome = _drain(beam_search(plan))
    widths = [4] if chunk is None else [chunk] * (4 // chunk)
    assert model.core.forwards == [*((1, width) for width in widths), (3, 1), (3, 1)]
    assert [step.token_ids for step in steps[: len(widths) - 1]] == [[[]]] * (len(widths) - 1)
    whole = TableModel().generate(torch.tensor([[1, 2, 3, 4]]), max_new_tokens=3, num_beams=3)
    assert outcome.sequences.tolist() == whole.tolist()  # type: ignore[union-attr]


def test_rows_end_one_by_one_with_all_their_sequences() -> None:
    model = TableModel(seed=1, eos_bias=4.0)
    fields = {"num_beams": 3, "num_return_sequences": 2, "early_stopping": True}
    prompts = [[1, 2], [3, 4], [5, 6]]
    steps, outcome = _drain(beam_search(plan_of(model, prompts, new_tokens=12, fields=fields)))
    ends: dict[int, int] = {}
    streams: list[list[int]] = [[] for _ in range(6)]
    for place, step in enumerate(steps):
        for row, (ids, reason) in enumerate(zip(step.token_ids, step.reasons, strict=True)):
            assert not (ids and row in ends)
            streams[row] += ids
            if reason is not None:
                ends[row] = place
    assert len(ends) == 6
    assert all(ends[row] == ends[row + 1] for row in (0, 2, 4))
    assert len(set(ends.values())) > 1
    for row, ids in enumerate(streams):
        whole = outcome.sequences[row, 2:].tolist()
        assert whole[: len(ids)] == ids
        assert set(whole[len(ids) :]) <= {PAD}


def test_logits_after_every_settled_id() -> None:
    model = TableModel(seed=3, eos_bias=1.0)
    fields = {"num_beams": 3, "num_return_sequences": 2}
    plan = plan_of(model, [[1, 2]], new_tokens=12, fields=fields, keep_logits=True)
    ids: list[list[int]] = [[1, 2], [1, 2]]
    for step in beam_search(plan):
        assert step.settled_logits is not None
        for row, (new, behind) in enumerate(zip(step.token_ids, step.settled_logits, strict=True)):
            for token, logits in zip(new, behind, strict=True):
                last, place = torch.tensor(ids[row][-1:]), torch.tensor([len(ids[row]) - 1])
                assert torch.equal(logits, model.core.logits(last, place)[0])
                ids[row].append(token)
    assert [len(row) for row in ids] == [14, 14] or EOS in (ids[0][-1], ids[1][-1])


def test_out_of_time_ends_with_the_best_so_far() -> None:
    model = TableModel()
    over = MaxTimeCriteria(1.0, initial_timestamp=0.0)
    plan = plan_of(model, [[1, 2]], new_tokens=9, criteria=(over,), fields={"num_beams": 3})
    steps, outcome = _drain(beam_search(plan))
    assert [step.reasons for step in steps] == [["time"]]
    assert steps[0].token_ids == [outcome.sequences[0, 2:].tolist()]


def test_cancelled_search_returns_the_settled_tokens() -> None:
    cancel = CancelCriteria()
    fields = {"num_beams": 3}
    plan = plan_of(TableModel(), [[1, 2]], new_tokens=9, criteria=(cancel,), fields=fields)
    steps = beam_search(plan)
    next(steps)
    cancel.set()
    last = next(steps)
    assert last.reasons == ["cancelled"]
    assert last.token_ids == [[]]
    with pytest.raises(StopIteration):
        next(steps)


@pytest.mark.parametrize("bad", [float("nan"), -float("inf")])
@pytest.mark.parametrize("options", [{}, {"do_sample": True}])
def test_scores_that_nothing_can_be_picked_from(bad: float, options: dict[str, Any]) -> None:
    processors = LogitsProcessorList([lambda ids, scores: torch.full_like(scores, bad)])
    with pytest.raises(FloatingPointError, match="<lambda> left a row without a token"):
        TableModel().generate(
            PROMPT, max_new_tokens=3, num_beams=2, logits_processor=processors, **options
        )


def test_rules_of_a_configuration() -> None:
    fields = {"num_beams": 4, "eos_token_id": [5, 6, 7], "pad_token_id": 0, "length_penalty": 2}
    rules = beam_rules(plan_of(TableModel(), [[1]], new_tokens=3, fields=fields))
    assert (rules.num_beams, rules.num_candidates, rules.length_penalty) == (4, 16, 2.0)
    assert rules.filler == 5  # an id of 0 does not count as padding
    rules = beam_rules(plan_of(TableModel(), [[1]], new_tokens=3, fields={"num_beams": 3}))
    assert (rules.num_candidates, rules.filler, rules.max_length) == (6, PAD, 4)
