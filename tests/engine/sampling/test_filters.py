"""A column gives each row, bit for bit, what its number gives it alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.engine.sampling.edits import Part
from asyncgen.engine.sampling.filters import PARAMETERS, FilterRows, bind
from asyncgen.engine.sampling.scores import BatchScores
from asyncgen.generation.logits import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

CPU = torch.device("cpu")
SHARES = st.floats(0.001, 0.999)
MAKERS = {
    TemperatureLogitsWarper: st.floats(0.05, 5.0),
    TopHLogitsWarper: SHARES,
    TopKLogitsWarper: st.integers(1, 300),
    TopPLogitsWarper: SHARES | st.sampled_from([0.0, 0.99, 0.995, 1.0]),
    MinPLogitsWarper: SHARES | st.just(0.0),
    TypicalLogitsWarper: SHARES,
    EpsilonLogitsWarper: SHARES.map(lambda share: share / 50),
    EtaLogitsWarper: SHARES.map(lambda share: share / 50),
}


def test_every_filter_with_a_parameter_is_looked_at() -> None:
    assert {kind for kind, named in PARAMETERS.items() if named is not None} == MAKERS.keys()


@pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_columns_are_as_good_as_numbers(kind: Any) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(MAKERS[kind], min_size=1, max_size=5),
        st.sampled_from([9, 300, 4111]),
        st.integers(0, 999),
        st.sampled_from([0.1, 3.0, 15.0]),
        st.booleans(),
    )
    def check(values: list[Any], size: int, seed: int, scale: float, ties: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(len(values), size, generator=generator) * scale
        scores = scores.round() if ties else scores
        scores[:, ::7] = -torch.inf
        processors = [kind(value) for value in values]
        together = bind(processors, CPU)(scores)
        for row, processor in enumerate(processors):
            alone = processor(torch.zeros(1, 1, dtype=torch.int64), scores[row : row + 1])
            assert torch.equal(together[row : row + 1], alone)

    check()


@pytest.mark.parametrize("kind", [TopPLogitsWarper, TypicalLogitsWarper, EtaLogitsWarper])
def test_a_large_vocabulary_rounds_the_same_for_one_row_and_many(kind: Any) -> None:
    threads = torch.get_num_threads()
    scores = torch.randn(6, 50257, generator=torch.Generator().manual_seed(1))
    scores *= torch.tensor([0.1, 0.5, 1.0, 2.0, 4.0, 8.0])[:, None]
    processor = kind(0.01 if kind is EtaLogitsWarper else 0.7)
    together = bind([processor] * 6, CPU)(scores)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for row in range(6):
                alone = processor(torch.zeros(1, 1, dtype=torch.int64), scores[row : row + 1])
                assert torch.equal(together[row : row + 1], alone)
    finally:
        torch.set_num_threads(threads)


def test_rows_without_the_filter_stay_as_they_are() -> None:
    logits = torch.randn(3, 40)
    rows: Any = [None, None, None]
    scores = BatchScores(logits, rows, own=True)
    parts = [Part(0, TopKLogitsWarper(3), {}), Part(2, TopKLogitsWarper(5), {})]
    FilterRows(parts, scores)(scores)
    assert torch.equal(scores.values[1], logits[1])
    assert (scores.values != -torch.inf).sum(-1).tolist() == [3, 40, 5]


def test_what_rows_do_not_share_makes_groups() -> None:
    logits = torch.randn(2, 40)
    rows: Any = [None, None]
    scores = BatchScores(logits, rows, own=True)
    parts = [Part(0, TopKLogitsWarper(3), {}), Part(1, TopKLogitsWarper(5, filter_value=-9.0), {})]
    FilterRows(parts, scores)(scores)
    assert int((scores.values[0] == -torch.inf).sum()) == 37
    assert int((scores.values[1] == -9.0).sum()) == 35
