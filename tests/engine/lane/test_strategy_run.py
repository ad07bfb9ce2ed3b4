"""A run advances by one step a turn, and its end is told once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.engine.lane.strategy_run import StepRun
from asyncgen.generation.logits.base import LogitsProcessorList
from tests.doubles.engine import greedy_ids, no_assistants, sampled_ids
from tests.doubles.models import EOS, TableModel, byte_tokenizer
from tests.engine.making import Clock, request_for

if TYPE_CHECKING:
    from tests.doubles.sinks import RecordingSink


def run_for(
    model: TableModel, prompt: Any = "abc", *, chunk: int | None = None, **given: Any
) -> tuple[StepRun, RecordingSink]:
    """A run over a recording sink."""
    request, sink = request_for(prompt, model=model, **given)
    run = StepRun(
        request,
        model,
        byte_tokenizer(),
        clock=Clock(),
        prefill_chunk=chunk,
        assistants=no_assistants(),
    )
    return run, sink


def test_one_turn_is_one_forward_pass() -> None:
    model = TableModel()
    run, sink = run_for(model, max_new_tokens=3)
    assert model.num_forwards == 0
    assert [run.turn() for _ in range(3)] == [True, True, False]
    assert model.num_forwards == 3
    assert [event.token_ids[0] for event in sink.events] == greedy_ids(model, list(b"abc"), 3)
    assert sink.events[-1].finish_reason == "length"


def test_one_turn_is_one_chunk() -> None:
    model = TableModel()
    run, sink = run_for(model, list(range(10)), chunk=4, max_new_tokens=2)
    for _ in range(2):
        assert run.turn()
        assert sink.items == []
    assert run.turn()
    assert not run.turn()
    assert model.core.forwards == [(1, 4), (1, 4), (1, 2), (1, 1)]


def test_a_request_may_choose_its_chunk() -> None:
    model = TableModel()
    run, _ = run_for(model, list(range(10)), chunk=4, max_new_tokens=1, prefill_chunk_size=3)
    while run.turn():
        pass
    assert model.core.forwards == [(1, 3), (1, 3), (1, 3), (1, 1)]


def test_samples_share_their_turns() -> None:
    model = TableModel(eos_bias=2.5)
    run, sink = run_for(model, n=4, do_sample=True, top_k=0, seed=3, max_new_tokens=30)
    while run.turn():
        pass
    for row in range(4):
        own = [event.token_ids[0] for event in sink.events if event.index == row]
        assert own == sampled_ids(model, list(b"abc"), 30, seed=3, row=row)
    assert all(rows == 4 for rows, _ in model.core.forwards)


def test_a_stop_string_ends_a_sample_at_its_token() -> None:
    model = TableModel(script="abcdef", prompt_length=3)
    run, sink = run_for(model, stop="cd")
    while run.turn():
        pass
    assert model.num_forwards == 4
    assert sink.text == "ab"


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_cancelled_run_ends_at_its_next_turn(turns: int) -> None:
    model = TableModel()
    request, sink = request_for(model=model)
    run = StepRun(
        request,
        model,
        byte_tokenizer(),
        clock=Clock(),
        prefill_chunk=None,
        assistants=no_assistants(),
    )
    for _ in range(turns):
        assert run.turn()
    request.cancel.set()
    assert not run.turn()
    assert model.num_forwards == turns
    assert sink.events[-1].finish_reason == "cancelled"
    assert sum(event.usage is not None for event in sink.events) == 1


@pytest.mark.parametrize("turns", [0, 2])
def test_early_end_keeps_the_generated_tokens(turns: int) -> None:
    model = TableModel()
    run, sink = run_for(model)
    for _ in range(turns):
        run.turn()
    run.end("aborted")
    run.end("aborted")
    assert [event.finish_reason for event in sink.events] == [None] * turns + ["aborted"]


def test_an_error_leaves_the_run() -> None:
    def bad(input_ids: Any, scores: Any) -> Any:
        raise ZeroDivisionError

    run, sink = run_for(TableModel(), logits_processor=LogitsProcessorList([bad]))
    with pytest.raises(ZeroDivisionError):
        run.turn()
    assert sink.items == []


def test_logprobs_only_where_asked_for() -> None:
    model = TableModel(script=[97, EOS], prompt_length=3)
    run, sink = run_for(model)
    run.turn()
    assert sink.events[0].logprobs is None
    run, sink = run_for(model, top_logprobs=2)
    run.turn()
    [entry] = sink.events[0].logprobs or ()
    assert entry.token_id == 97 and len(entry.top) == 2
