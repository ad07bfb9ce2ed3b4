"""Rows with states in the shared batch: whatever happens to them, their tokens are the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import asyncgen
from asyncgen.cache.states import slot_bytes
from asyncgen.errors import InvalidRequestError
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


def test_several_samples_of_a_prompt_each_have_their_own_state(model: Any) -> None:
    given = {"n": 3, "do_sample": True, "seed": 4, "max_new_tokens": 15}
    bench = Bench(model, **ROOM)
    request, sink = bench.add([7, 8, 9, 10, 11, 12, 13], **given)
    bench.run()
    found = [ids_of(sink, index) for index in range(3)]
    assert found == alone(model, request.prompt_ids, **given, **ROOM)
    assert request.cached_tokens == 0
    assert len({*map(tuple, found)}) == 3


def test_who_is_preempted_computes_its_state_again(model: Any) -> None:
    bench = Bench(model, max_running=3, **ROOM)
    given = {"n": 3, "do_sample": True, "seed": 9, "max_new_tokens": 24}
    _, sink = bench.add([1, 2, 3], client="hog", **given)
    for _ in range(15):
        bench.step()
    for number in range(4):
        bench.add([5, number], client="late", max_new_tokens=20, do_sample=False)
    bench.run()
    assert bench.batch._scheduler.num_preemptions
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
    bench = Bench(model, pages=pages, page_size=1, position_bytes=each // 2, max_running=8)
    assert bench.pool.slots is not None and bench.pool.slots.num_slots == 2
    sinks = [bench.add([number, 9], max_new_tokens=6, do_sample=False)[1] for number in range(5)]
    bench.step()
    assert bench.batch._scheduler.num_running == 2
    bench.run()
    for number, sink in enumerate(sinks):
        expected = alone(model, [number, 9], max_new_tokens=6, do_sample=False, **ROOM)
        assert [ids_of(sink)] == expected
    with pytest.raises(InvalidRequestError, match="the states of one text takes?"):
        Bench(model, pages=1, page_size=1, position_bytes=each - 1)


def test_a_text_that_was_left_its_pages_is_computed_anew(model: Any) -> None:
    bench = Bench(model, manual_eviction=True, **ROOM)
    request, sink = bench.add([1, 2, 3, 4, 5, 6], max_new_tokens=5, do_sample=False)
    bench.run()
    again, other = bench.add([1, 2, 3, 4, 5, 6], max_new_tokens=5, do_sample=False)
    bench.run()
    assert ids_of(other) == ids_of(sink)
    assert again.cached_tokens == 0
    bench.require_empty()


def test_going_on_behind_generated_tokens(model: Any) -> None:
    whole = alone(model, [4, 5, 6], max_new_tokens=12, do_sample=False, **ROOM)[0]
    bench = Bench(model, **ROOM)
    given = {"generated_ids": [whole[:5]], "max_new_tokens": 12, "do_sample": False}
    _, sink = bench.add([4, 5, 6], **given)
    bench.run()
    assert ids_of(sink)[-7:] == whole[5:]


@pytest.mark.parametrize(
    "given",
    [
        {"prompt_lookup_num_tokens": 3},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"dola_layers": "high"},
    ],
)
def test_what_takes_tokens_back_is_refused_by_name(model: Any, given: dict[str, Any]) -> None:
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
