"""Every mix of requests gives each the tokens that it gets alone, and leaves nothing behind."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.engine.scheduling.scheduler import FIFOScheduler
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from tests.cases import for_each, some
from tests.doubles.engine import greedy_ids, raw_logits, sampled_ids
from tests.doubles.models import EOS, TableModel
from tests.engine.batches import Bench, alone, ids_of

if TYPE_CHECKING:
    from asyncgen.engine.requests.request import Request
    from tests.doubles.sinks import RecordingSink

MODEL = TableModel(eos_bias=0.5)

PARAMETERS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.3, "top_k": 20},
    {"top_p": 0.8, "repetition_penalty": 1.2},
    {"min_p": 0.05, "no_repeat_ngram_size": 2},
    {"typical_p": 0.9, "presence_penalty": 0.5},
    {"frequency_penalty": 0.7, "suppress_tokens": [1, 2, 3]},
    {"epsilon_cutoff": 0.001, "min_new_tokens": 4},
    {"eta_cutoff": 0.001, "bad_words_ids": [[5], [6, 7]]},
    {"forced_eos_token_id": EOS, "sequence_bias": [[[9], 3.0]]},
    {"do_sample": True, "n": 3, "no_repeat_ngram_size": 3},
    {"do_sample": True, "top_k": 0, "n": 2, "frequency_penalty": 1.0},
)


def a_request(rng: random.Random, prefixes: list[list[int]]) -> tuple[list[int], dict[str, Any]]:
    """A prompt, often with a beginning that others have, and parameters."""
    prompt = rng.choice([[], *prefixes]) + [rng.randrange(256) for _ in range(rng.randint(1, 12))]
    given = dict(rng.choice(PARAMETERS))
    given |= {"max_new_tokens": rng.randint(5, 24), "seed": rng.randrange(1000)}
    if rng.random() < 0.2:
        given["prefill_chunk_size"] = rng.randint(1, 5)
    if rng.random() < 0.2:
        given["priority"] = rng.randint(-1, 2)
    return prompt, given


def run_mix(seed: int, more: tuple[dict[str, Any], ...] = (), **options: Any) -> Bench:
    """Requests that arrive and are cancelled at random moments; tokens are compared with alone.

    Args:
        seed: Of everything.
        more: Parameters, some of which a part of the requests have as well.
        options: Of the engine.
    """
    rng = random.Random(seed)
    prefixes = [[rng.randrange(256) for _ in range(rng.randint(4, 20))] for _ in range(2)]
    bench = Bench(
        MODEL,
        pages=rng.choice([14, 20, 60]),
        page_size=rng.choice([2, 4]) if seed % 2 else 4,
        max_running=rng.choice([2, 4, 8]),
        prefill_chunk_size=rng.choice([1, 3, 8, 100]),
        scheduler=rng.choice(["fifo", "prefill_first"]),
        prefix_caching=rng.random() < 0.8,
        **options,
    )
    added: list[tuple[Request, RecordingSink, list[int], dict[str, Any]]] = []
    cancelled: set[int] = set()
    waiting = [a_request(rng, prefixes) for _ in range(rng.randint(3, 8))]
    for _, given in waiting if more else ():
        if rng.random() < 0.3:
            given |= rng.choice(more)
    while waiting or bench.engine.has_work:
        while waiting and rng.random() < 0.4:
            prompt, given = waiting.pop()
            try:
                added.append((*bench.add(prompt, **given), prompt, given))
            except InvalidRequestError as error:
                assert "kv_cache_memory" in str(error)  # 14 small pages do not hold all of them
        if added and rng.random() < 0.03:
            number = rng.randrange(len(added))
            added[number][0].cancel.set()
            cancelled.add(number)
        if bench.engine.has_work:
            bench.step()
    bench.require_empty()
    for number, (_, sink, prompt, given) in enumerate(added):
        for index, expected in enumerate(alone(MODEL, prompt, **given)):
            found = ids_of(sink, index)
            if number in cancelled:
                expected = expected[: len(found)]
            assert found == expected, (number, prompt, given)
    return bench


@pytest.mark.parametrize("start", some(range(0, 60, 6), 4))
def test_every_mix_gives_the_tokens_of_each_alone(start: int) -> None:
    preempted = sum(
        run_mix(seed).batch.scheduler.num_preemptions for seed in range(start, start + 6)
    )
    assert preempted or start  # some of the pools are far too small


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", range(1000, 1300, 50))
def test_300_mixes(start: int) -> None:
    for seed in range(start, start + 50):
        run_mix(seed)


def test_greedy_and_sampled_tokens_equal_the_reference() -> None:
    bench = Bench(MODEL, prefill_chunk_size=3)
    _, greedy = bench.add([1, 2, 3, 4, 5], max_new_tokens=20)
    _, sampled = bench.add([9, 8], max_new_tokens=20, do_sample=True, top_k=0, seed=5, n=2)
    bench.run()
    assert ids_of(greedy) == greedy_ids(MODEL, [1, 2, 3, 4, 5], 20)
    for row in range(2):
        assert ids_of(sampled, row) == sampled_ids(MODEL, [9, 8], 20, seed=5, row=row)
    bench.require_empty()


def test_a_tiny_pool_preempts_and_the_tokens_are_the_same() -> None:
    model = TableModel()
    bench = Bench(model, pages=10, page_size=4, prefill_chunk_size=16)
    added = [bench.add([number, 7, 7], max_new_tokens=30) for number in range(4)]
    bench.run()
    assert bench.batch.scheduler.num_preemptions
    assert bench.engine.metrics.snapshot().queue_time.count == 4  # each started once
    for number, (_, sink) in enumerate(added):
        assert ids_of(sink) == greedy_ids(model, [number, 7, 7], 30)
        assert [event.finish_reason for event in sink.events][-1] == "length"
    bench.require_empty()


def test_samples_share_the_pages_of_their_prompt() -> None:
    model = TableModel()
    prompt = list(range(40))
    bench = Bench(model, page_size=4, prefill_chunk_size=100, prefix_caching=False)
    _, sink = bench.add(prompt, do_sample=True, n=4, max_new_tokens=3, seed=1)
    bench.run()
    # The whole once, the last page (whose logits are needed) by each of the others.
    assert sum(count for _, count in model.core.forwards) == 40 + 3 * 4 + 4 * 2
    assert sink.events[-1].usage is not None and sink.events[-1].usage.cached_tokens == 0
    bench.require_empty()


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_next_chat_turn_computes_only_new_tokens(prefix_caching: bool) -> None:
    model = TableModel()
    bench = Bench(model, page_size=4, prefill_chunk_size=100, prefix_caching=prefix_caching)
    prompt = list(range(21))
    _, first = bench.add(prompt, max_new_tokens=10)
    bench.run()
    model.core.forwards.clear()
    prompt += [*ids_of(first), 1, 2, 3]
    _, second = bench.add(prompt, max_new_tokens=4)
    bench.run()
    usage = second.events[-1].usage
    assert usage is not None
    # 30 of the 31 tokens were computed, 28 of them in full pages and two at the end.
    assert usage.cached_tokens == (30 if prefix_caching else 0)
    assert model.core.forwards[0] == (1, 34 - usage.cached_tokens)
    assert ids_of(second) == greedy_ids(model, prompt, 4)


def test_pages_are_shared_under_the_same_salt_alone() -> None:
    bench = Bench(TableModel(), page_size=4, prefill_chunk_size=100)
    prompt = list(range(21))
    cached = []
    for salt in (None, "a", "b", "a", "req-1", None):
        _, sink = bench.add(prompt, max_new_tokens=1, cache_salt=salt)
        bench.run()
        usage = sink.events[-1].usage
        assert usage is not None
        cached.append(usage.cached_tokens)
    assert cached == [0, 0, 0, 20, 0, 20]


@for_each("name", ["client", "cache_salt"])
@for_each("value", ["", "x" * 257, 7, "\ud800"])
def test_labels_are_short_texts(name: str, value: object) -> None:
    bench = Bench(TableModel())
    with pytest.raises(InvalidRequestError, match=f"{name}.*1 to 256 characters"):
        bench.add([1, 2], max_new_tokens=1, **{name: value})


def test_a_request_chooses_its_chunk() -> None:
    model = TableModel()
    bench = Bench(model, prefill_chunk_size=100)
    bench.add(list(range(10)), max_new_tokens=1, prefill_chunk_size=4)
    bench.run()
    assert model.core.forwards == [(1, 4), (1, 4), (1, 2)]


def test_a_late_joiner_and_a_long_prompt() -> None:
    """Running streams get a token in every step; a newcomer one within two steps of its prefill."""
    model = TableModel(context_length=4096)
    bench = Bench(model, pages=2000, page_size=16, prefill_chunk_size=256)
    running = [bench.add([number], max_new_tokens=60) for number in range(4)]
    for _ in range(5):
        bench.step()
    _, long = bench.add(list(range(200)) * 10, max_new_tokens=5)
    steps = 0
    while not long.items:
        before = [len(sink.items) for _, sink in running]
        bench.step()
        steps += 1
        assert [len(sink.items) for _, sink in running] == [count + 1 for count in before]
        assert sum(count for _, count in model.core.forwards[-5:]) <= 256 + 4
    assert steps == 8  # 2,000 tokens in chunks of 256
    _, late = bench.add([5, 6, 7], max_new_tokens=2)
    bench.step()
    assert len(late.items) == 1
    bench.run()
    bench.require_empty()


class Planned(Exception):
    """An error that a test raises on purpose."""


class Failing:
    """A processor that raises, or makes NaN, at its fifth call."""

    def __init__(self, how: str) -> None:
        self.how, self.calls = how, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls < 5:
            return scores
        if self.how == "raise":
            raise Planned
        return torch.full_like(scores, torch.nan)


@for_each("seed", range(6))
def test_failures_of_four_sequences_leave_the_other_four_unchanged(seed: int) -> None:
    rng = random.Random(seed)
    model = TableModel()
    poison = [rng.randrange(50, 60) for _ in range(1)][0]
    bench = Bench(model, pages=80, prefill_chunk_size=rng.choice([4, 64]))
    fates = ["raise", "nan", "cancel", "reader"] + [""] * 4
    rng.shuffle(fates)
    added = []
    for number, fate in enumerate(fates):
        given: dict[str, Any] = {"max_new_tokens": 25}
        if number % 2:
            given |= {"do_sample": True, "top_k": 0, "seed": number}
        if fate in ("raise", "nan"):
            given["logits_processor"] = LogitsProcessorList([Failing(fate)])
        added.append((*bench.add([number, poison, 3], **given), fate))
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
        prompt = [number, poison, 3]
        if number % 2:
            expected = sampled_ids(model, prompt, 25, seed=number)
        else:
            expected = greedy_ids(model, prompt, 25)
        assert ids_of(sink) == expected[: len(ids_of(sink))]
        if not fate:
            assert ids_of(sink) == expected
        elif fate in ("raise", "nan"):
            assert len(ids_of(sink)) == 4
            assert isinstance(sink.items[-1], Planned if fate == "raise" else FloatingPointError)
        else:
            assert sink.events[-1].finish_reason == "cancelled"


def test_nan_row_fails_alone_and_its_blocks_are_not_reused() -> None:
    model = TableModel()
    bench = Bench(model, page_size=4, prefill_chunk_size=64)
    healthy = model.core.table.clone()
    prompt = list(range(12))
    _, other = bench.add([200], max_new_tokens=10)
    bench.step()
    # The row of the table that speaks after the prompt.
    place = (31 * prompt[-1] + 7 * (len(prompt) - 1)) % len(healthy)
    model.core.table[place] = torch.nan
    _, bad = bench.add(prompt, max_new_tokens=10)
    bench.step()
    [error] = bad.items
    assert isinstance(error, FloatingPointError)
    model.core.table[place] = healthy[place]
    _, again = bench.add(prompt, max_new_tokens=2)
    bench.run()
    assert again.events[-1].usage is not None and again.events[-1].usage.cached_tokens == 0
    assert ids_of(again) == greedy_ids(model, prompt, 2)
    assert ids_of(other) == greedy_ids(model, [200], 10)
    bench.require_empty()


@pytest.mark.parametrize("samples", [1, 2])
def test_a_pass_that_fails_for_every_row_ends_their_requests_alone(samples: int) -> None:
    fails = [True]

    def hook(input_ids: torch.Tensor, positions: torch.Tensor) -> None:
        if fails[0]:
            raise Planned

    bench = Bench(TableModel(hook=hook))
    sinks = [bench.add([number], n=samples, do_sample=True)[1] for number in range(3 - samples)]
    bench.step()
    assert [[type(item) for item in sink.items] for sink in sinks] == [[Planned]] * len(sinks)
    fails[0] = False
    _, later = bench.add([7], max_new_tokens=3)
    bench.run()
    assert len(ids_of(later)) == 3
    bench.require_empty()


def test_requests_that_were_aborted_in_the_queue_are_let_go() -> None:
    bench = Bench(max_running=1)
    bench.add([1], max_new_tokens=40)
    waiting = [bench.add([2, number])[0] for number in range(20)]
    bench.step()
    for request in waiting:
        bench.engine.abort(request)
    kept = [weakref.ref(request.sink) for request in waiting]
    del waiting, request
    bench.step()
    gc.collect()
    assert not any(reference() for reference in kept)


def test_a_sample_that_is_left_its_pages_keeps_nothing_else() -> None:
    bench = Bench(manual_eviction=True)
    request, sink = bench.add([1, 2, 3, 4, 5], max_new_tokens=2)
    name, kept = request.id, weakref.ref(sink)
    del request, sink
    bench.run()
    gc.collect()
    assert kept() is None and bench.pool.num_used > 0
    bench.engine.evict(name)
    assert bench.pool.num_used == 0


def test_a_pass_that_raises_is_run_again_row_by_row() -> None:
    def hook(input_ids: torch.Tensor, positions: torch.Tensor) -> None:
        if bool((input_ids == 250).any()):
            raise Planned

    model = TableModel(hook=hook)
    bench = Bench(model)
    _, bad = bench.add([250], max_new_tokens=5)
    added = [bench.add([number], max_new_tokens=5) for number in range(3)]
    bench.run()
    assert [type(item) for item in bad.items] == [Planned]
    for number, (_, sink) in enumerate(added):
        if 250 not in greedy_ids(model, [number], 5):
            assert ids_of(sink) == greedy_ids(model, [number], 5)
    bench.require_empty()


def test_criteria_of_the_user_see_their_row() -> None:
    seen: list[tuple[int, ...]] = []

    def at_ten(input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        seen.append((*input_ids.shape, *scores.shape))
        return torch.full((len(input_ids),), input_ids.shape[1] >= 10)

    bench = Bench()
    _, sink = bench.add([1, 2, 3], stopping_criteria=StoppingCriteriaList([at_ten]))
    _, other = bench.add([1, 2], max_new_tokens=30)
    bench.run()
    assert len(ids_of(sink)) == 7 and len(ids_of(other)) == 30
    assert seen == [(1, length, 1, 260) for length in range(4, 11)]


def test_logprobs_are_of_the_raw_distribution() -> None:
    model = TableModel()
    bench = Bench(model)
    _, sink = bench.add([1, 2, 3], temperature=0.5, top_logprobs=3, seed=1, max_new_tokens=2)
    bench.add([9], max_new_tokens=5)
    bench.run()
    ids = [1, 2, 3]
    for event in sink.events:
        [entry] = event.logprobs or ()
        expected = torch.log_softmax(raw_logits(model, ids), dim=-1)
        assert entry.logprob == pytest.approx(float(expected[entry.token_id]), abs=1e-5)
        assert [top.token_id for top in entry.top] == expected.topk(3).indices.tolist()
        ids.append(entry.token_id)


def test_a_stop_string_ends_the_row_at_once() -> None:
    model = TableModel(script="abcdef", prompt_length=3)
    bench = Bench(model)
    _, sink = bench.add([1, 2, 3], stop="cd")
    bench.run()
    assert sink.text == "ab" and model.num_forwards == 4
    assert sink.events[-1].stop_reason == "cd"
    bench.require_empty()


def test_interrupted_in_the_queue_and_before_a_step() -> None:
    bench = Bench(max_running=1)
    first, kept = bench.add([1], max_new_tokens=5)
    second, dropped = bench.add([2], max_new_tokens=5)
    second.cancel.set()
    bench.step()
    first.cancel.set()
    bench.run()
    assert len(ids_of(kept)) == 1 and ids_of(dropped) == []
    assert kept.events[-1].finish_reason == dropped.events[-1].finish_reason == "cancelled"
    bench.require_empty()


class Reversed(FIFOScheduler):
    """The youngest prompt first."""

    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[Any]:
        """Ask for rows in the opposite order."""
        running = self.running()
        waiting = sorted(self.waiting(), key=lambda state: -state.arrival)
        return self.schedule([*running, *waiting], token_budget, cache_budget)


class Silent(FIFOScheduler):
    """Schedules nobody."""

    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[Any]:
        """Nobody."""
        return []


def test_a_scheduler_of_the_user_decides_the_order() -> None:
    model = TableModel()
    bench = Bench(model, scheduler=Reversed, max_running=1)
    added = [bench.add([number] * (number + 1), max_new_tokens=2) for number in range(3)]
    bench.run()
    assert [count for _, count in model.core.forwards] == [3, 1, 2, 1, 1, 1]
    assert all(len(ids_of(sink)) == 2 for _, sink in added)


def test_scheduler_that_schedules_nothing_raises_runtime_error() -> None:
    bench = Bench(scheduler=Silent)
    bench.add()
    with pytest.raises(RuntimeError, match="schedule_batch"):
        for _ in range(10):
            bench.engine.step()


def living() -> list[object]:
    """Objects of requests, from whoever may hold them."""
    gc.collect()
    kinds = {"Request", "Sequence", "SequenceText", "EventWriter", "StepRun"}
    return [thing for thing in gc.get_objects() if type(thing).__name__ in kinds]


def churn(count: int, seed: int) -> None:
    """Requests with random ends; everything is back where it began, again and again."""
    rng = random.Random(seed)
    bench = Bench(MODEL, pages=36, max_running=6, prefill_chunk_size=8)
    # What other tests have left may go meanwhile, so objects are told apart and not counted.
    threads, before = threading.active_count(), living()
    prefixes = [[rng.randrange(256) for _ in range(8)]]
    for _ in range(-(-count // 20)):
        live = []
        for _ in range(20):
            prompt, given = a_request(rng, prefixes)
            if rng.random() < 0.15:
                given["logits_processor"] = LogitsProcessorList([Failing("raise")])
            live.append(bench.add(prompt, **given)[0])
            bench.step()
            if rng.random() < 0.2:
                rng.choice(live).cancel.set()
            if rng.random() < 0.2:
                bench.engine.abort(rng.choice(live))
        bench.num_steps = 0
        bench.run()
        bench.require_empty()
    del live, bench  # the sampler keeps what it laid out for its last rows
    assert threading.active_count() <= threads  # idle workers of other tests may end meanwhile
    known = {id(thing) for thing in before}
    assert all(id(thing) in known for thing in living())


def test_all_blocks_are_free_after_200_requests() -> None:
    churn(200, 0)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_all_blocks_are_free_after_5000_requests() -> None:
    churn(5000, 1)
