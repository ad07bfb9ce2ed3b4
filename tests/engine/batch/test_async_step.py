"""With the next pass begun before tokens are read, every request gets the tokens it gets alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from asyncgen import native
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.engine.batch.async_step import BegunStep, UnreadTokens
from asyncgen.engine.batch.runner import BatchRunner
from asyncgen.engine.kv_cache.cached_sequence import UNREAD
from asyncgen.engine.scheduling.state import RequestState, ScheduledRow
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from asyncgen.models.attention.paged.fused import FusedKernel
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from asyncgen.models.cuda_graphs import DecodeGraphs
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.cases import for_each, some
from tests.doubles.engine import greedy_ids, sampled_ids
from tests.doubles.models import EOS, TableModel
from tests.doubles.recorders import TapeRecorder
from tests.doubles.varlen import varlen_attn
from tests.engine.batch.test_batch import MODEL, Failing, Planned, run_mix
from tests.engine.batches import Bench, ids_of
from tests.models.build import random_config, random_model


def prefers_its_last(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A user's processor: looks at the newest token, which must be there."""
    scores[:, int(input_ids[0, -1])] += 1.5
    return scores


def in_float64(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A user's processor that leaves the others."""
    assert int(input_ids.min()) >= 0
    return scores.double()


def at_a_seventh(input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """A user's criterion: looks at the newest token."""
    return input_ids[:, -1] % 7 == 0


MORE: tuple[dict[str, Any], ...] = (
    {"stop": ["a", "e", "t"]},
    {"stop_strings": ["o", " "]},
    {"logits_processor": LogitsProcessorList([prefers_its_last])},
    {"logits_processor": LogitsProcessorList([in_float64])},
    {"stopping_criteria": StoppingCriteriaList([at_a_seventh])},
    {"top_logprobs": 2},
    {"eos_token_id": [EOS, *range(0, 250, 25)]},
    {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
)


@pytest.mark.parametrize("start", some(range(0, 18, 6), 1))
def test_every_mix_gives_the_tokens_of_each_alone(start: int) -> None:
    preempted = 0
    for seed in range(start, start + 6):
        bench = run_mix(seed, MORE if seed % 2 else (), use_async_batching=True)
        preempted += bench.batch.scheduler.num_preemptions
    assert preempted


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", range(1000, 1300, 50))
def test_300_mixes(start: int) -> None:
    for seed in range(start, start + 50):
        run_mix(seed, MORE if seed % 2 else (), use_async_batching=True)


def ahead(model: TableModel | None = None, **options: Any) -> Bench:
    """A bench whose engine runs ahead."""
    return Bench(model, use_async_batching=True, **options)


def test_the_next_pass_is_begun_before_the_tokens_are_read() -> None:
    model = TableModel(script="abcd", prompt_length=3)
    bench = ahead(model)
    _, sink = bench.add([1, 2, 3])
    bench.step()
    # The prompt and the token behind it, of which only the first was sampled.
    assert model.core.forwards == [(1, 3), (1, 1)] and sink.text == "a"
    bench.run()
    # The end came with the fifth token, and the pass that would have gone on was dropped.
    assert sink.text == "abcd" and sink.events[-1].finish_reason == "stop"
    assert model.num_forwards == 6
    bench.require_empty()
    assert bench.batch._begun is None


def test_a_length_is_known_beforehand() -> None:
    model = TableModel()
    bench = ahead(model)
    _, sink = bench.add([1, 2, 3], max_new_tokens=4)
    bench.run()
    assert ids_of(sink) == greedy_ids(model, [1, 2, 3], 4)
    assert model.num_forwards == 4


def never(input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """A user's criterion."""
    return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize(
    "given",
    [*MORE[2:4], {"stopping_criteria": StoppingCriteriaList([never])}, {"top_logprobs": 2}],
    ids=["processor", "dtype", "criterion", "logprobs"],
)
def test_requests_that_need_the_host_disable_async_steps(given: dict[str, Any]) -> None:
    model = TableModel()
    bench = ahead(model)
    _, first = bench.add([9, 8], max_new_tokens=12)
    bench.step()
    assert bench.batch._begun is not None
    _, second = bench.add([1, 2, 3], max_new_tokens=5, **given)
    for _ in range(3):
        bench.step()
    assert 0 < len(ids_of(second)) < 5 and bench.batch._begun is None
    while second.events[-1].finish_reason is None:
        bench.step()
    bench.step()
    assert bench.batch._begun is not None
    bench.run()
    assert ids_of(first) == greedy_ids(model, [9, 8], 12)


def test_one_with_the_name_of_one_that_left() -> None:
    model = TableModel()
    bench = ahead(model)
    request, _ = bench.add([1, 2, 3], max_new_tokens=9)
    _, other = bench.add([4], max_new_tokens=9)
    bench.step()
    bench.engine.abort(request)
    again, sink = bench.prepare([5, 6], max_new_tokens=4)
    object.__setattr__(again, "id", request.id)
    bench.engine.add(again)
    bench.run()
    assert ids_of(sink) == greedy_ids(model, [5, 6], 4)
    assert ids_of(other) == greedy_ids(model, [4], 9)
    bench.require_empty()


def test_all_leave_while_a_pass_is_under_way() -> None:
    bench = ahead()
    request, _ = bench.add([1, 2, 3], max_new_tokens=9)
    bench.step()
    bench.engine.abort(request)
    assert bench.batch._begun is None
    bench.require_empty()
    bench.add([1], max_new_tokens=9)
    bench.step()
    bench.engine.fail_all(RuntimeError())
    assert bench.batch._begun is None


def test_cancel_between_two_steps_keeps_sampled_tokens() -> None:
    model = TableModel()
    bench = ahead(model)
    request, sink = bench.add([1, 2, 3], max_new_tokens=9)
    _, other = bench.add([4], max_new_tokens=9)
    bench.step()
    bench.step()
    request.cancel.set()
    bench.run()
    assert ids_of(sink) == greedy_ids(model, [1, 2, 3], 3)
    assert sink.events[-1].finish_reason == "cancelled"
    assert ids_of(other) == greedy_ids(model, [4], 9)


def test_a_pass_that_raises_is_run_again_row_by_row() -> None:
    calls = []

    def hook(input_ids: torch.Tensor, positions: torch.Tensor) -> None:
        calls.append(input_ids.numel())
        if bool((positions == 6).any()) and bool((input_ids == second[4]).any()):
            raise Planned

    model = TableModel()
    first, second = (greedy_ids(model, prompt, 12) for prompt in ([1, 2, 3], [4, 5, 6]))
    assert second[3] != first[3]
    second = [*second[:4], second[3]]  # the token at position 6
    model.core.hook = hook
    bench = ahead(model)
    _, good = bench.add([1, 2, 3], max_new_tokens=12)
    _, bad = bench.add([4, 5, 6], max_new_tokens=12)
    bench.run()
    assert ids_of(good) == first
    assert ids_of(bad) == second[:4] and isinstance(bad.items[-1], Planned)
    bench.require_empty()


@for_each("seed", range(4))
def test_failures_of_four_sequences_leave_the_other_four_unchanged(seed: int) -> None:
    rng = random.Random(seed)
    model = TableModel()
    bench = ahead(model, pages=80, prefill_chunk_size=rng.choice([4, 64]))
    fates = ["raise", "nan", "cancel", "reader"] + [""] * 4
    rng.shuffle(fates)
    added = []
    for number, fate in enumerate(fates):
        given: dict[str, Any] = {"max_new_tokens": 25}
        if number % 2:
            given |= {"do_sample": True, "top_k": 0, "seed": number}
        if fate in ("raise", "nan"):
            given["logits_processor"] = LogitsProcessorList([Failing(fate)])
        added.append((*bench.add([number, 55, 3], **given), fate))
    for _ in range(12):
        bench.step()
    for request, _, fate in added:
        if fate in ("cancel", "reader"):
            request.cancel.set()
        if fate == "reader":
            bench.engine.abort(request)
    bench.run()
    bench.require_empty()
    for number, (_, sink, fate) in enumerate(added):
        prompt = [number, 55, 3]
        expected = (
            sampled_ids(model, prompt, 25, seed=number)
            if number % 2
            else greedy_ids(model, prompt, 25)
        )
        found = ids_of(sink)
        assert found == (expected if not fate else expected[: len(found)])
        assert len(found) == 4 or fate not in ("raise", "nan")


@pytest.mark.parametrize("sampling", [{}, {"do_sample": True, "top_k": 0, "seed": 3}], ids=str)
def test_nan_row_fails_alone_and_its_blocks_are_not_reused(sampling: dict[str, Any]) -> None:
    model = TableModel()
    bench = ahead(model, page_size=4, prefill_chunk_size=64)
    prompt = list(range(12))
    place = (31 * prompt[-1] + 7 * (len(prompt) - 1)) % len(model.core.table)
    healthy = model.core.table.clone()
    _, other = bench.add([200], max_new_tokens=10)
    bench.step()
    model.core.table[place] = torch.nan
    _, bad = bench.add(prompt, max_new_tokens=10, **sampling)
    _, follower = bench.add([*prompt, 3, 4, 5], max_new_tokens=3)
    bench.step()
    bench.step()
    model.core.table[place] = healthy[place]
    [error] = bad.items
    assert isinstance(error, FloatingPointError)
    bench.run()
    usage = follower.events[-1].usage
    assert usage is not None and usage.cached_tokens == 0
    assert ids_of(follower) == greedy_ids(model, [*prompt, 3, 4, 5], 3)
    assert ids_of(other) == greedy_ids(model, [200], 10)
    bench.require_empty()


def test_recorded_steps_that_run_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real network, with recordings that ask nothing of the host."""
    # A tape records what torch computes, as an accelerator does.
    monkeypatch.setattr(native, "kernels", None)
    windows = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}
    core = random_model(random_config("qwen2", **windows), seed=3)
    results = []
    for recorded in (False, True):
        model = PreTrainedModel(core, MODEL.generation_config, "random")
        bench = Bench(model, pages=4000, page_size=4, use_async_batching=recorded)
        if recorded:
            storage = PagedStorage(core.config, bench.pool.num_pages + 1, 4, heads_first=False)
            graphs = DecodeGraphs(
                core,
                storage,
                FusedKernel(varlen_attn, True, options={"enable_gqa": True}),
                TapeRecorder(),
                rows=[1, 2, 4],
                pages=[4, 16],
                scratch=bench.pool.num_pages,
                most_gathered=0,
                after=3,
            )
            bench.batch._runner = BatchRunner(core, PagedAttention(core.config, storage), graphs)
            bench.engine.warm()
            assert graphs.sizes == [(4, 4), (2, 4), (1, 4)]
        sinks = []
        for number in range(5):
            given: dict[str, Any] = {
                "max_new_tokens": 6 + 5 * number,
                "eos_token_id": [2, 30 + number],
            }
            if number % 2:
                given |= {"do_sample": True, "seed": number, "repetition_penalty": 1.2}
            prompt = [number + place for place in range(3 + 3 * number)]
            sinks.append(bench.add(prompt, **given)[1])
            bench.step()
        bench.run()
        bench.require_empty()
        results.append([ids_of(sink) for sink in sinks])
    assert results[0] == results[1]
    assert len({pages for _, pages in graphs.sizes}) == 2 and graphs.failure is None


def row_of(name: str, tokens: list[int], count: int = 1) -> ScheduledRow:
    """A row that comes to the end of its text."""
    state = RequestState(name, tokens)
    return ScheduledRow(state, len(tokens) - count, count, [0], True)


def test_tokens_are_inserted_where_they_are_wanted() -> None:
    rows = [row_of("a", [5, UNREAD]), row_of("b", [1, 2, 3], 3), row_of("c", [7, 7, UNREAD])]
    tokens = torch.tensor([30, 20, 10])
    unread = UnreadTokens(tokens, {rows[0].state: 2, rows[2].state: 0})
    ids = torch.full((6,), -5, dtype=torch.int32)
    insert = unread.inserter(rows, [UNREAD, 1, 2, 3, UNREAD])
    assert insert is not None
    insert(ids)
    assert ids.tolist() == [10, -5, -5, -5, 30, -5]
    assert unread.inserter([rows[1]], [1, 2, 3]) is None
    every = UnreadTokens(tokens, {row.state: number for number, row in enumerate(rows)})
    rows[1] = row_of("b", [1, UNREAD])
    every.numbers[rows[1].state] = 1
    insert = every.inserter(rows, [UNREAD] * 3)
    assert insert is not None
    insert(ids)
    assert ids.tolist() == [30, 20, 10, -5, 30, -5]


def test_texts_are_as_long_as_before_when_the_tokens_are_here() -> None:
    state = RequestState("a", [1, 2])
    unread = UnreadTokens(torch.tensor([4]), {state: 0})
    unread.expect()
    assert state.tokens == [1, 2, UNREAD]
    unread.forget()
    assert state.tokens == [1, 2]


def test_rows_that_left_are_dropped_with_their_logits() -> None:
    rows = [row_of(name, [1, 2]) for name in "abcd"]
    rows[1].is_last = False
    sampled = [row.state for row in rows if row.is_last]
    step = BegunStep(rows, torch.tensor([[0.0], [2.0], [3.0]]), sampled)
    assert step.without_ended() is step
    rows[0].state.end()
    rows[2].state.end("failed")
    left = step.without_ended()
    assert [row.state.request_id for row in left.rows] == ["b", "d"]
    assert left.logits is not None and left.logits.tolist() == [[3.0]]
    rows[1].state.end()
    rows[3].state.end()
    assert BegunStep(rows, None, sampled).without_ended() == BegunStep([], None, [])
