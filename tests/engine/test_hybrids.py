"""Rows with pages and states: a text goes on where both are known, with the same tokens."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.cache.paged_storage import page_bytes
from asyncgen.cache.states import slot_bytes
from asyncgen.errors import InvalidRequestError
from tests.engine.batches import Bench, alone, ids_of
from tests.families.arch.families import make

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4
GIVEN: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False}
ROOM = {"position_bytes": 1 << 16}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A tiny Qwen 3.5 of the reference, and ours."""
    folder: Path = tmp_path_factory.mktemp("hybrid")
    theirs = make("qwen3_5_text", folder)
    return theirs, asyncgen.load_model(folder, dtype="float32")


@torch.no_grad()
def said_by(theirs: Any, prompt: list[int], count: int) -> list[int]:
    """The most probable tokens, each computed from the whole text."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(theirs(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(prompt) :]


def test_next_chat_turn_computes_only_new_tokens(pair: tuple[Any, Any]) -> None:
    theirs, ours = pair
    bench = Bench(ours, page_size=PAGE, snapshot_pages=100, **ROOM)
    text = [5, 6, 7, 8, 9, 10]
    for turn in range(4):
        request, sink = bench.add(text, **GIVEN)
        bench.run()
        assert ids_of(sink) == said_by(theirs, text, 9)
        new = len(text) - request.progress.cached_tokens
        assert new <= (PAGE - 1) + 1 + 2 or not turn
        text = [*text, *ids_of(sink), 40 + turn, 3]
    bench.require_empty()


def test_a_hit_needs_pages_and_a_state_at_the_same_place(pair: tuple[Any, Any]) -> None:
    _, ours = pair
    bench = Bench(ours, page_size=PAGE, snapshot_pages=2, prefill_chunk_size=100, **ROOM)
    common = [*range(10, 10 + 6 * PAGE)]

    def cached(rest: list[int]) -> int:
        request, sink = bench.add([*common, *rest], **GIVEN)
        bench.run()
        assert [ids_of(sink)] == alone(ours, request.prompt_ids, **GIVEN, **ROOM)
        return request.progress.cached_tokens // PAGE

    slots = bench.pool.slots
    assert slots is not None
    assert cached([1, 1]) == 0
    slots.unpublish(list(slots._slot_of)[2:])  # states go, pages stay
    assert (bench.pool.num_kept, slots.num_kept) == (8, 2)
    assert cached([2, 2]) == 4
    assert cached([3, 3]) == 6
    bench.pool.forget_kept()  # pages go, states stay
    assert slots.num_kept
    assert cached([3, 3]) == 0
    bench.require_empty()


def test_text_resumes_in_the_middle_of_an_answer(pair: tuple[Any, Any]) -> None:
    _, ours = pair
    bench = Bench(ours, page_size=PAGE, snapshot_pages=2, **ROOM)
    first, sink = bench.add([5, 6, 7], max_new_tokens=30, do_sample=False)
    bench.run()
    request, other = bench.add([*first.prompt_ids, *ids_of(sink)[:20], 9], **GIVEN)
    bench.run()
    assert request.progress.cached_tokens == 20 // (2 * PAGE) * 2 * PAGE
    assert [ids_of(other)] == alone(ours, request.prompt_ids, **GIVEN, **ROOM)


def test_drafts_are_taken_back(pair: tuple[Any, Any]) -> None:
    theirs, ours = pair
    bench = Bench(ours, **ROOM)
    prompt = [*range(10, 16)] * 3
    _, sink = bench.add(prompt, prompt_lookup_num_tokens=4, max_new_tokens=30, do_sample=False)
    bench.run()
    assert ids_of(sink) == said_by(theirs, prompt, 30)
    bench.require_empty()


def test_chaos_leaks_neither_page_nor_slot(pair: tuple[Any, Any]) -> None:
    _, ours = pair
    draws, room = random.Random(8), 60 * page_bytes(ours.core.config, 3, ours.dtype)
    each = slot_bytes(ours.core.config, ours.dtype)
    options = {"max_running": 4, "prefill_chunk_size": 7, "snapshot_pages": 2, "page_size": 3}
    bench = Bench(ours, pages=1, position_bytes=max(room, 22 * each) // 3, **options)
    scheduler, live, ended = bench.batch.scheduler, [], []
    for _ in range(50):
        event = draws.random()
        if event < 0.4:
            prompt = [*range(10, 10 + draws.randrange(18)), draws.randrange(3), 7]
            live.append(bench.add(prompt, client=draws.choice(["a", "b"]), **GIVEN))
        elif event < 0.5 and live:
            bench.batch.abort(live.pop(draws.randrange(len(live)))[0])
        elif event < 0.6 and scheduler.active_requests:
            scheduler.preempt(draws.choice(scheduler.running()))
        if bench.engine.has_work:
            bench.step()
        ended += [pair for pair in live if pair[0] not in bench.batch.requests]
        live = [pair for pair in live if pair[0] in bench.batch.requests]
    bench.run()
    for request, sink in ended + live:
        assert [ids_of(sink)] == alone(ours, request.prompt_ids, **GIVEN, **ROOM)
    assert any(request.progress.cached_tokens for request, _ in ended + live)
    bench.require_empty()
    slots = bench.pool.slots
    assert slots is not None and slots.num_running == slots.num_held == 0


def test_long_stream_takes_the_computed_memory(tmp_path: Path) -> None:
    """32,768 tokens: keys and values of the layers that attend, and two states of the others."""
    make("qwen3_5_text", tmp_path, max_position_embeddings=40_000)
    model = asyncgen.load_model(tmp_path, dtype="float32")
    config, length, size = model.core.config, 32_768, 32
    heads, keys, values, window = 4, 8, 6, 4  # of the checkpoint's states
    convolved = 2 * 2 * keys + heads * values
    of_state = len(config.mixing) * 4 * (heads * keys * values + window * convolved)
    of_token = len(config.attending) * 2 * 4 * config.num_key_value_heads * config.head_dim
    options: dict[str, Any] = {"max_running": 1, "page_size": size, "prefill_chunk_size": 64}
    memory = 2 * length * of_token
    bench = Bench(model, pages=1, position_bytes=memory // size, **options)
    request, _ = bench.add([number % 60 for number in range(length - 1)], max_new_tokens=2)
    bench.step()  # pages are taken for a whole prompt when it is admitted
    bench.step()
    pool, slots = bench.pool, bench.pool.slots
    attention, states = bench.batch._runner._attention._packed  # type: ignore[attr-defined]
    assert slots is not None
    pages, held = attention.storage.data, [*states.storage.windows, *states.storage.states]
    taken = pages.nbytes // pool.num_pages * pool.num_used
    taken += sum(tensor[0].nbytes for tensor in held) * slots.num_held
    assert taken == length * of_token + 2 * of_state
    assert (of_state, of_token) == (
        slot_bytes(config, model.dtype),
        page_bytes(config, size, model.dtype) // size,
    )
    assert pages.nbytes + sum(tensor[1:].nbytes for tensor in held) <= memory
    bench.batch.abort(request)
    bench.require_empty()


def test_half_of_the_memory_is_for_states_at_most(pair: tuple[Any, Any]) -> None:
    _, ours = pair
    each = slot_bytes(ours.core.config, ours.dtype)

    def rows_and_slots(memory: int, **options: Any) -> tuple[int, int]:
        bench = Bench(ours, pages=1, page_size=1, position_bytes=memory, **options)
        assert bench.pool.slots is not None
        assert bench.pool.num_pages > 0
        return bench.pool.slots.num_rows, bench.pool.slots.num_slots

    assert rows_and_slots(20 * each, max_running=8) == (5, 10)
    assert rows_and_slots(20 * each, max_running=8, state_snapshots=5) == (2, 10)
    assert rows_and_slots(20 * each, max_running=2) == (2, 6)
    assert rows_and_slots(20 * each, max_running=2, state_snapshots=0) == (2, 4)
    with pytest.raises(InvalidRequestError, match=r"`state_snapshots` is 9: .* at most 8"):
        rows_and_slots(20 * each, state_snapshots=9)
    with pytest.raises(InvalidRequestError, match=f"two states of one text take {2 * each}"):
        rows_and_slots(2 * each)
