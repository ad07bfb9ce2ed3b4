"""Rows with states in the shared batch: whatever happens to them, their tokens are the same."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch

import asyncgen
from asyncgen.cache.states import slot_bytes
from asyncgen.errors import InvalidRequestError
from tests.cases import for_each
from tests.engine.batches import Bench, alone, ids_of
from tests.models.build import random_model

FILES: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 5, "time_step_rank": 2},
    "mamba2": {"state_size": 5, "num_heads": 4, "head_dim": 8, "n_groups": 2},
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"],
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 4,
        "max_position_embeddings": 512,
    },
}
ROOM = {"position_bytes": 1 << 16}


@pytest.fixture(scope="module", params=FILES)
def model(request: pytest.FixtureRequest) -> Any:
    sizes = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "eos_token_id": None}
    return asyncgen.PreTrainedModel(
        random_model({"model_type": request.param, **sizes, **FILES[request.param]}, spread=0.5)
    )


def test_long_and_short_ones_in_chunks_beside_each_other(model: Any) -> None:
    bench = Bench(model, prefill_chunk_size=5, page_size=3, max_running=3, **ROOM)
    prompts = [[number + at for at in range(3 + 9 * number)] for number in range(4)]
    sinks = [bench.add(prompt, max_new_tokens=8, do_sample=False)[1] for prompt in prompts]
    bench.run()
    for prompt, sink in zip(prompts, sinks, strict=True):
        assert [ids_of(sink)] == alone(model, prompt, max_new_tokens=8, do_sample=False, **ROOM)
    bench.require_empty()
    assert bench.pool.slots is not None and bench.pool.slots.num_held == 0


def computed_tokens(bench: Bench) -> list[int]:
    """Filled as steps go: how many tokens each computes."""
    counts: list[int] = []
    runner = bench.batch._runner
    logits = runner.logits

    def counting(rows: Any, *args: Any, **more: Any) -> torch.Tensor:
        counts.append(sum(row.count for row in rows))
        return logits(rows, *args, **more)

    runner.logits = counting  # type: ignore[method-assign]
    return counts


@for_each("prefix_caching", [True, False])
def test_samples_of_a_prompt_share_its_state(model: Any, prefix_caching: bool) -> None:
    given = {"n": 3, "do_sample": True, "seed": 4, "max_new_tokens": 15}
    bench = Bench(model, prefix_caching=prefix_caching, **ROOM)
    counts = computed_tokens(bench)
    request, sink = bench.add([7, 8, 9, 10, 11, 12, 13], **given)
    bench.run()
    found = [ids_of(sink, index) for index in range(3)]
    assert found == alone(model, request.prompt_ids, **given, **ROOM)
    assert request.progress.cached_tokens == 0
    assert len({*map(tuple, found)}) == 3
    assert sum(counts) == 4 + 3 * (3 + 14)
    bench.require_empty()


def test_next_chat_turn_computes_only_new_tokens(model: Any) -> None:
    bench = Bench(model, page_size=4, snapshot_pages=100, **ROOM)
    text, cached = [5, 6, 7, 8, 9, 10], []
    for turn in range(4):
        given = {"max_new_tokens": 9 + turn, "do_sample": False}
        expected = alone(model, text, **given, **ROOM)
        request, sink = bench.add(text, **given)
        bench.run()
        assert [ids_of(sink)] == expected
        cached.append(len(text) - request.progress.cached_tokens)
        text = [*text, *ids_of(sink), 40 + turn, 3]
    # The last token of an answer is not computed, and a page is computed whole or not at all.
    assert cached[0] == 6
    assert all(new <= 3 + 1 + 2 for new in cached[1:])
    bench.require_empty()


def test_snapshots_lie_on_the_way_of_a_long_prompt_and_where_texts_part(model: Any) -> None:
    given: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}
    bench = Bench(model, page_size=2, snapshot_pages=4, prefill_chunk_size=100, **ROOM)
    common = [*range(10, 32)]

    def cached(rest: list[int]) -> int:
        request, sink = bench.add([*common, *rest], **given)
        bench.run()
        assert [ids_of(sink)] == alone(model, request.prompt_ids, **given, **ROOM)
        return request.progress.cached_tokens

    assert cached([1] * 9) == 0
    assert cached([2] * 9) == 16  # of 22 that are common, the last of every eight
    assert cached([3] * 9) == 22  # where the one before parted from the first
    assert cached([2] * 9) == 30  # the end of its last full page
    bench.require_empty()


def test_simultaneous_requests_compute_a_common_prefix_once(model: Any) -> None:
    given: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False}
    bench = Bench(model, page_size=4, snapshot_pages=100, prefill_chunk_size=8, **ROOM)
    counts = computed_tokens(bench)
    requests = [bench.add([*range(10, 35), number, 7], **given) for number in range(3)]
    bench.run()
    for request, sink in requests:
        assert [ids_of(sink)] == alone(model, request.prompt_ids, **given, **ROOM)
    assert [request.progress.cached_tokens for request, _ in requests] == [0, 24, 24]
    assert sum(counts) == 27 + 2 * 3 + 3 * 2
    bench.require_empty()


def test_salts_part_snapshots_and_without_any_everything_is_computed(model: Any) -> None:
    prompt, given = [*range(10, 30)], {"max_new_tokens": 6, "do_sample": False}
    expected = alone(model, prompt, **given, **ROOM)
    for options, salts, cached in (
        ({}, ("a", "b", "a"), [0, 0, 16]),
        ({"state_snapshots": 0}, ("a", "a", "a"), [0, 0, 0]),
        ({"prefix_caching": False}, ("a", "a", "a"), [0, 0, 0]),
    ):
        bench = Bench(model, **options, **ROOM)
        found = []
        for salt in salts:
            request, sink = bench.add(prompt, cache_salt=salt, **given)
            bench.run()
            assert [ids_of(sink)] == expected
            found.append(request.progress.cached_tokens)
        assert found == cached
        slots = bench.pool.slots
        assert slots is not None
        assert bool(slots.num_kept) is (cached[2] > 0)
        bench.require_empty()


def test_oldest_snapshots_are_evicted_at_the_memory_bound(model: Any) -> None:
    each = slot_bytes(model.core.config, model.dtype)
    sizes = {"page_size": 1, "position_bytes": each}
    sizes["pages"] = 10 if model.core.config.attending else 5  # of which half are for states
    bench = Bench(model, max_running=8, state_snapshots=3, **sizes)
    slots = bench.pool.slots
    assert slots is not None
    assert (slots.num_rows, slots.num_slots) == (1, 5)
    given: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
    for number in (0, 1, 2, 0):
        request, sink = bench.add([number, *range(10, 20)], **given)
        bench.run()
        assert slots.num_kept <= 5
    assert request.progress.cached_tokens == 0  # others came in between
    again, _ = bench.add([*request.prompt_ids, *ids_of(sink), 5], **given)
    bench.run()
    # where keys are kept as well, pages are few
    assert again.progress.cached_tokens == 14 or model.core.config.attending
    with pytest.raises(InvalidRequestError, match=r"`state_snapshots` is 4: .* at most 3"):
        Bench(model, state_snapshots=4, **sizes)


@for_each("runs_ahead", [False, True])
def test_chaos_leaks_no_slot_and_changes_no_token(model: Any, runs_ahead: bool) -> None:
    each = slot_bytes(model.core.config, model.dtype)
    draws = random.Random(5)
    bench = Bench(
        model,
        pages=14,
        page_size=3,
        position_bytes=each // 3,
        max_running=4,
        prefill_chunk_size=7,
        snapshot_pages=2,
        use_async_batching=runs_ahead,
    )
    scheduler = bench.batch.scheduler
    given: dict[str, Any] = {"max_new_tokens": 11, "do_sample": True, "seed": 1}
    live, ended = [], []
    for _ in range(60):
        event = draws.random()
        if event < 0.35:
            beginning = [*range(10, 10 + draws.randrange(18))]
            prompt = [*beginning, *(draws.randrange(3) for _ in range(1 + draws.randrange(4)))]
            more = {"n": 2} if draws.random() < 0.2 else {}
            client = draws.choice(["a", "b"])
            live.append(bench.add(prompt, client=client, **given, **more))
        elif event < 0.45 and live:
            bench.batch.abort(live.pop(draws.randrange(len(live)))[0])
        elif event < 0.55 and scheduler.active_requests and bench.batch._begun is None:
            scheduler.preempt(draws.choice(scheduler.running()))
        if bench.engine.has_work:
            bench.step()
        ended += [pair for pair in live if pair[0] not in bench.batch.requests]
        live = [pair for pair in live if pair[0] in bench.batch.requests]
    bench.run()
    for request, sink in ended + live:
        count = request.params.num_samples
        expected = alone(model, request.prompt_ids, n=count, **given, **ROOM)
        assert [ids_of(sink, index) for index in range(count)] == expected
    bench.require_empty()
    assert bench.pool.slots is not None
    assert bench.pool.slots.num_running == bench.pool.slots.num_held == 0


def test_a_preempted_request_resumes_from_its_newest_state(model: Any) -> None:
    bench = Bench(model, max_running=3, **ROOM)
    given = {"n": 3, "do_sample": True, "seed": 9, "max_new_tokens": 24}
    _, sink = bench.add([1, 2, 3], client="hog", **given)
    for _ in range(15):
        bench.step()
    for number in range(4):
        bench.add([5, number], client="late", max_new_tokens=20, do_sample=False)
    bench.run()
    assert bench.batch.scheduler.num_preemptions
    assert [ids_of(sink, index) for index in range(3)] == alone(model, [1, 2, 3], **given, **ROOM)
    bench.require_empty()


def test_a_cancelled_one_leaves_its_slot_to_the_next(model: Any) -> None:
    bench = Bench(model, max_running=2, **ROOM)
    stopped = [bench.add([number] * 9, max_new_tokens=30)[0] for number in range(2)]
    _, sink = bench.add([3, 4, 5], max_new_tokens=10, do_sample=False)
    for _ in range(4):
        bench.step()
    for request in stopped:
        assert bench.batch.abort(request)
    bench.run()
    assert [ids_of(sink)] == alone(model, [3, 4, 5], max_new_tokens=10, do_sample=False, **ROOM)
    bench.require_empty()


def test_the_memory_pays_for_slots_and_more_rows_wait(model: Any) -> None:
    each = slot_bytes(model.core.config, model.dtype)
    # Beside attention, states have half of the memory.
    pages = 10 if model.core.config.attending else 5
    bench = Bench(model, pages=pages, page_size=1, position_bytes=each, max_running=8)
    assert bench.pool.slots is not None
    assert (bench.pool.slots.num_rows, bench.pool.slots.num_slots) == (2, 5)
    sinks = [bench.add([number, 9], max_new_tokens=6, do_sample=False)[1] for number in range(5)]
    bench.step()
    assert bench.batch.scheduler.num_running == 2
    bench.run()
    for number, sink in enumerate(sinks):
        expected = alone(model, [number, 9], max_new_tokens=6, do_sample=False, **ROOM)
        assert [ids_of(sink)] == expected
    with pytest.raises(InvalidRequestError, match=f"two .*takes? {2 * each} bytes"):
        Bench(model, pages=1, page_size=1, position_bytes=2 * each - 1)


def test_text_that_kept_its_blocks_resumes_from_a_snapshot(model: Any) -> None:
    bench = Bench(model, manual_eviction=True, **ROOM)
    request, sink = bench.add([1, 2, 3, 4, 5, 6], max_new_tokens=5, do_sample=False)
    bench.run()
    again, other = bench.add([1, 2, 3, 4, 5, 6], max_new_tokens=5, do_sample=False)
    bench.run()
    assert ids_of(other) == ids_of(sink)
    assert again.progress.cached_tokens == 4
    bench.require_empty()


def test_continues_after_generated_tokens(model: Any) -> None:
    whole = alone(model, [4, 5, 6], max_new_tokens=12, do_sample=False, **ROOM)[0]
    bench = Bench(model, **ROOM)
    given = {"generated_ids": [whole[:5]], "max_new_tokens": 12, "do_sample": False}
    _, sink = bench.add([4, 5, 6], **given)
    bench.run()
    assert ids_of(sink)[-7:] == whole[5:]


@for_each(
    "given",
    [
        {"prompt_lookup_num_tokens": 3},
        {"prompt_lookup_num_tokens": 4, "do_sample": True, "top_k": 1},
        {"assistant_early_exit": 1},
        {"assistant_early_exit": 1, "output_hidden_states": True},
        {"assistant": 5},
        {"assistant": None, "prompt": 40},
    ],
)
def test_drafts_change_no_token(model: Any, given: dict[str, Any]) -> None:
    """Right and wrong ones: of the same model, of another one, of its own layers, looked up."""
    given = dict(given)
    length = given.pop("prompt", 12)
    if "assistant" in given:
        seed = given.pop("assistant")
        given["assistant_model"] = model if seed is None else other_weights(model, seed)
    ids = torch.tensor([[*range(10, 10 + length // 2)] * 2])
    more = {"max_new_tokens": 40, "return_dict_in_generate": True, "output_scores": True}
    plain = model.generate(ids, do_sample=False, **more)
    found = model.generate(ids, **{"do_sample": False, **more, **given})
    assert torch.equal(found.sequences, plain.sequences)
    # Torch's sums are in another order for several tokens at once, and dense attention is torch's.
    least = 1e-4 if model.core.config.attending else 0.0
    away: Any = dict.fromkeys(
        ("atol", "rtol"), 5e-4 if asyncgen.cpu_kernels() == "torch" else least
    )
    if "do_sample" not in given:
        torch.testing.assert_close(found.scores, plain.scores, **away)
    if "output_hidden_states" in given:
        expected = model.generate(ids, do_sample=False, output_hidden_states=True, **more)
        torch.testing.assert_close(found.hidden_states, expected.hidden_states, **away)


def other_weights(model: Any, seed: int) -> Any:
    """A model of the same shape that says something else."""
    torch.manual_seed(seed)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data.mul_(1 + 0.5 * torch.rand_like(parameter))
    other.core.prepare()
    return other


@for_each(
    "given",
    [
        {"penalty_alpha": 0.6, "top_k": 4},
        {"dola_layers": "high"},
    ],
)
def test_strategies_that_take_tokens_back_are_refused_with_states(
    model: Any, given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError, match=f"`{next(iter(given))}`.*keep states"):
        Bench(model, **ROOM).add([1, 2, 3], max_new_tokens=5, **given)
    with pytest.raises(InvalidRequestError, match="keep states"):
        model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5, **given)


def test_other_caches_keep_keys_where_layers_attend(model: Any) -> None:
    ids, given = torch.tensor([[1, 2, 3]]), {"max_new_tokens": 5, "do_sample": False}
    if model.core.config.attending:
        found = model.generate(ids, cache_implementation="static", **given)
        assert torch.equal(found, model.generate(ids, **given))
        return
    with pytest.raises(InvalidRequestError, match="`cache_implementation`.*keep states"):
        Bench(model, **ROOM).add([1, 2, 3], cache_implementation="static", **given)
    with pytest.raises(InvalidRequestError, match="`cache_implementation`.*keep states"):
        model.generate(ids, cache_implementation="static", **given)
