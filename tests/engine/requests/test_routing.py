"""Whatever the shared batch cannot serve takes turns beside it, and nothing is refused for it."""

from __future__ import annotations

from typing import Any

import torch

from asyncgen.engine.requests.prepare import num_rows
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from tests.cases import for_each
from tests.doubles.models import TableModel
from tests.engine.batches import Bench, ids_of
from tests.engine.making import request_for


def keep(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A processor that does nothing."""
    return scores


def never(input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """A criterion that ends nothing."""
    return torch.zeros(len(input_ids), dtype=torch.bool)


@for_each(
    "given",
    [
        {},
        {"temperature": 0.5, "top_p": 0.9, "repetition_penalty": 1.1, "stop": "x"},
        {"do_sample": True, "n": 4},
        {"logits_processor": LogitsProcessorList([keep])},
        {"stopping_criteria": StoppingCriteriaList([never])},
        {"top_logprobs": 3},
        {"prefill_chunk_size": 2},
    ],
)
def test_greedy_and_sampling_share_steps(given: Any) -> None:
    assert request_for(**given)[0].alone is None


@for_each(
    ("given", "word"),
    [
        ({"penalty_alpha": 0.6, "top_k": 4}, "strategy"),
        ({"prompt_lookup_num_tokens": 3}, "strategy"),
        ({"custom_generate": lambda model, **kwargs: None}, "user's"),
        ({"token_healing": True}, "chosen anew"),
        ({"cache_implementation": "static"}, "cache"),
        ({"use_cache": False}, "cache"),
        ({"do_sample": True, "n": 2, "logits_processor": LogitsProcessorList([keep])}, "samples"),
        ({"do_sample": True, "n": 2, "stopping_criteria": StoppingCriteriaList([never])}, "sam"),
    ],
)
def test_the_rest_runs_alone(given: Any, word: str) -> None:
    request, _ = request_for(**given)
    assert word in str(request.alone)


def test_a_model_without_packed_rows() -> None:
    model = TableModel()
    model.core.decode_packed = None  # type: ignore[assignment,method-assign]
    assert "decoder" in str(request_for(model=model)[0].alone)


def test_angles_that_change_with_the_length() -> None:
    class Core(type(TableModel().core)):  # type: ignore[misc]
        packed_length = 20

    model = TableModel()
    model.core.__class__ = Core
    assert "rotary" in str(request_for(model=model, max_new_tokens=18)[0].alone)
    assert request_for(model=model, max_new_tokens=17)[0].alone is None


def test_rows_that_a_request_keeps() -> None:
    assert num_rows(request_for()[0].params) == 1
    assert num_rows(request_for(do_sample=True, n=3)[0].params) == 3
    assert num_rows(request_for(num_beams=4, n=2)[0].params) == 4
    assert num_rows(request_for(penalty_alpha=0.6, top_k=4)[0].params) == 4


def test_both_at_once_and_the_memory_is_one() -> None:
    model = TableModel()
    bench = Bench(model, pages=20, page_size=4)
    _, shared = bench.add([1, 2], max_new_tokens=30)
    request, beside = bench.add([1, 2], max_new_tokens=30, cache_implementation="static")
    assert request.num_pages == 8
    bench.step()
    assert bench.pool.num_reserved == 8
    # No room for a second one beside these, so it waits; the others go on.
    waits, third = bench.add([1, 2], max_new_tokens=30, use_cache=False)
    for _ in range(10):
        bench.step()
    assert third.items == [] or bench.pool.num_reserved == 16
    bench.run()
    assert ids_of(shared) == ids_of(beside) == ids_of(third)
    assert waits.alone is not None
    bench.require_empty()
