"""A wrong attribute of a processor fails its request; processors of others run once a token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import asyncgen
from tests.cases import for_each
from tests.doubles.models import VOCABULARY, TableModel
from tests.engine.batches import Bench, ids_of

if TYPE_CHECKING:
    from collections.abc import Callable

NEW = 6

WRONG: tuple[tuple[Callable[[], Any], str, Any], ...] = (
    (lambda: asyncgen.ForcedEOSTokenLogitsProcessor(9, 1), "max_length", "9"),
    (lambda: asyncgen.RepetitionPenaltyLogitsProcessor(1.3), "penalty", torch.ones(3)),
    (lambda: asyncgen.SuppressTokensLogitsProcessor([18]), "suppress_tokens", 5),
    (lambda: asyncgen.MinLengthLogitsProcessor(9, [1]), "eos_token_id", 5),
    (lambda: asyncgen.TopPLogitsWarper(0.9), "filter_value", "x"),
    (lambda: asyncgen.TemperatureLogitsWarper(1.5), "temperature", torch.ones(3)),
)
"""How to make a processor, and an attribute of it with a value that it cannot use."""


class Counting:
    """A processor whose scores depend on how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        scores = scores.clone()
        scores[:, self.calls * 7 % VOCABULARY] += 1e3
        return scores


def counted(bench: Bench) -> tuple[Counting, Any]:
    own = Counting()
    _, sink = bench.add("abc", do_sample=False, max_new_tokens=NEW, logits_processor=[own])
    return own, sink


@for_each("at", [0, 1, 3])
@for_each("make, name, value", WRONG)
def test_processors_of_others_run_once_a_token(
    make: Callable[[], Any], name: str, value: Any, at: int
) -> None:
    alone = Bench(model := TableModel(eos_token_id=None))
    _, right = counted(alone)
    alone.run()

    bench, own = Bench(model), make()
    calls: list[None] = []

    def change(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        if len(calls) == at:
            setattr(own, name, value)
        return scores

    if not at:
        setattr(own, name, value)
    others = [counted(bench)]
    given: dict[str, Any] = {"logits_processor": [change, own], "max_new_tokens": NEW}
    _, failed = bench.add("abd", do_sample=False, **given)
    others.append(counted(bench))
    bench.run()
    assert [each.calls for each, _ in others] == [NEW, NEW]
    assert [ids_of(sink) for _, sink in others] == [ids_of(right)] * 2
    assert isinstance(failed.items[-1], Exception)
    assert len(ids_of(failed)) == max(len(calls) - 1, 0) < NEW
