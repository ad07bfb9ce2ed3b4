"""A chat whose turns go on from the ends of those before: its tokens are those of fresh engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen import native
from asyncgen.cache.layer_groups import plan_groups
from asyncgen.cache.paged_storage import page_bytes
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.cases import for_each, some
from tests.doubles.models import TableModel
from tests.engine.batches import Bench, ids_of
from tests.models.build import random_pair

if TYPE_CHECKING:
    from collections.abc import Callable

GREEDY: dict[str, Any] = {"do_sample": False}
FULL, SLIDING = "full_attention", "sliding_attention"
LAYERS = {"num_hidden_layers": 6, "layer_types": [SLIDING] * 5 + [FULL]}


def random_one(model_type: str, **more: Any) -> PreTrainedModel:
    """A small model whose every weight is random, with a context of 2,048 tokens."""
    more = {"max_position_embeddings": 2048, "eos_token_id": None, **more}
    return PreTrainedModel(random_pair(model_type, **more)[1])


MODELS: dict[str, Callable[[], Any]] = {
    "demo": lambda: asyncgen.load_model("demo", progress=False),
    "windows": lambda: random_one("mistral", sliding_window=21),
    "both": lambda: random_one("gemma3_text", sliding_window=40, query_pre_attn_scalar=8, **LAYERS),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


@pytest.fixture(params=["chosen", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use the kernels of this machine, then torch's."""
    if request.param == "torch":
        if native.kernels is None:
            pytest.skip("chosen anyway")
        monkeypatch.setattr(native, "kernels", None)
    return str(request.param)


def opened(model: Any, dtype: str, page_size: int, **more: Any) -> Bench:
    """An engine over pages for about 6,000 tokens."""
    config = model.core.config
    groups = len(plan_groups(config).groups)
    each = page_bytes(config, 1, torch.float32, is_packed=dtype == "int8")
    pages = groups * 6000 // page_size
    more = {"prefill_chunk_size": 512, "kv_cache_dtype": dtype, **more}
    return Bench(model, pages=pages, page_size=page_size, position_bytes=each, **more)


def answer(bench: Bench, prompt: list[int], **given: Any) -> tuple[list[int], int]:
    """The tokens of an answer, and how many of the prompt were known."""
    request, sink = bench.add(prompt, max_new_tokens=11, eos_token_id=[], **given)
    bench.run()
    bench.require_empty()
    return ids_of(sink), request.progress.cached_tokens


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(("page_size", "length"), some([(32, 45), (7, 31), (256, 300)], 1))
@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_the_turns_of_a_chat_are_those_of_fresh_engines(
    model: Any, dtype: str, page_size: int, length: int, sampled: bool
) -> None:
    # Torch's products round by the number of rows, which can decide between draws of equal worth.
    exact = native.kernels is not None
    given: dict[str, Any] = {"do_sample": True, "seed": 3} if sampled and exact else GREEDY
    bench, known = opened(model, dtype, page_size), 0
    text = [3 + (7 * number) % 90 for number in range(length)]
    for turn in range(3):
        ids, cached = answer(bench, text, **given)
        assert (ids, 0) == answer(opened(model, dtype, page_size), text, **given)
        # All that was computed, which is all but the last token of the answer before.
        assert cached == known
        known = len(text) + len(ids) - 1
        text = [*text, *ids, 5 + turn, 6, 7]


@for_each("runs_ahead", [False, True])
def test_an_answer_that_is_asked_for_again_and_other_ends(model: Any, runs_ahead: bool) -> None:
    """Two edit the end of a chat at a time, and a third goes on from what one of them has left."""
    bench = opened(model, "auto", 32, use_async_batching=runs_ahead)
    text = [3 + (11 * number) % 90 for number in range(50)]
    ids, _ = answer(bench, text, **GREEDY)
    text += ids
    turns = [[*text[:cut], 9, 8, cut] for cut in (56, 54)]
    added = [bench.add(turn, max_new_tokens=9, eos_token_id=[], **GREEDY) for turn in turns]
    bench.run()
    assert [request.progress.cached_tokens for request, _ in added] == [56, 32]
    for turn, (_, sink) in zip(turns, added, strict=True):
        fresh, _ = answer(opened(model, "auto", 32), turn, **GREEDY)
        assert ids_of(sink) == fresh[:9]
    # 54 + 3 + 9 tokens end behind the next page, so this is a tail of its second page.
    following = [*turns[1], *ids_of(added[1][1]), 4]
    ids, cached = answer(bench, following, **GREEDY)
    assert cached == len(following) - 2
    assert ids == answer(opened(model, "auto", 32), following, **GREEDY)[0]


@for_each("runs_ahead", [False, True])
def test_preempted_rows_go_on_where_they_were(model: Any, runs_ahead: bool) -> None:
    bench = opened(model, "auto", 32, use_async_batching=runs_ahead)
    prompts = [[3 + number] * (35 + 9 * number) for number in range(3)]
    given = {"max_new_tokens": 11, "eos_token_id": [], **GREEDY}
    added = [bench.add(prompt, **given) for prompt in prompts]
    scheduler, found = bench.batch.scheduler, []
    while bench.engine.has_work:
        bench.step()
        if bench.num_steps in (4, 7) and bench.batch._begun is None:
            for state in scheduler.running():
                computed = state.num_computed
                scheduler.preempt(state)
                found.append((state, computed))
            bench.step()
            assert [state.num_cached for state, _ in found] == [count for _, count in found]
            found.clear()
    bench.require_empty()
    assert runs_ahead or scheduler.num_preemptions == 6
    for prompt, (_, sink) in zip(prompts, added, strict=True):
        assert ids_of(sink) == answer(opened(model, "auto", 32), prompt, **GREEDY)[0]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_partial_blocks_of_nan_rows_are_not_reused(runs_ahead: bool) -> None:
    model = TableModel()
    bench = Bench(model, page_size=8, prefill_chunk_size=64, use_async_batching=runs_ahead)
    prompt = list(range(11))
    _, sink = bench.add(prompt, max_new_tokens=9)
    bench.run()
    first, healthy = ids_of(sink), model.core.table.clone()
    bench.pool.forget_kept()
    # The row of the table that speaks after two tokens of the answer.
    place = (31 * first[1] + 7 * (len(prompt) + 1)) % len(healthy)
    model.core.table[place] = torch.nan
    _, bad = bench.add(prompt, max_new_tokens=9)
    bench.run()
    assert isinstance(bad.items[-1], FloatingPointError)
    assert ids_of(bad) == first[:2]
    assert bench.pool.num_kept == len(bench.pool.partial_blocks.by_block) == 0
    model.core.table[place] = healthy[place]
    request, again = bench.add([*prompt, *first[:2], 1], max_new_tokens=9)
    bench.run()
    assert request.progress.cached_tokens == 0 and len(ids_of(again)) == 9


def test_samples_of_one_request_leave_each_its_end() -> None:
    bench = Bench(TableModel(), page_size=8, prefill_chunk_size=64)
    prompt, given = list(range(10)), {"do_sample": True, "max_new_tokens": 4}
    _, sink = bench.add(prompt, n=3, seed=1, **given)
    bench.run()
    ends = [ids_of(sink, index) for index in range(3)]
    assert len({*map(tuple, ends)}) == 3
    for end in ends:
        request, _ = bench.add([*prompt, *end, 5], **given)
        bench.run()
        assert request.progress.cached_tokens == len(prompt) + 3


def test_without_prefix_caching_there_are_no_tails_to_find() -> None:
    bench = Bench(TableModel(), page_size=8, prefill_chunk_size=64, prefix_caching=False)
    _, sink = bench.add(list(range(11)), max_new_tokens=3)
    bench.run()
    request, _ = bench.add([*range(11), *ids_of(sink), 5], max_new_tokens=3)
    bench.run()
    assert request.progress.cached_tokens == 0
