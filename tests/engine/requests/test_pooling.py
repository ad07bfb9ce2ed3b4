"""Hidden states become the vector that a plain formula gives, however they come."""

from __future__ import annotations

import pytest
import torch

from asyncgen.engine.requests.pooling import HiddenPool
from asyncgen.errors import InvalidScoresError

STATES = torch.randn(23, 16, generator=torch.Generator().manual_seed(1))


def pooled(pool: HiddenPool, states: torch.Tensor, *ends: int) -> torch.Tensor:
    """The vector of states that come in chunks which end there."""
    start = 0
    for end in (*ends, len(states)):
        wanted = pool.wanted(start, end, is_last=end == len(states))
        if wanted:
            pool.add(states[wanted.start : wanted.stop], wanted.start)
        start = end
    pool.finish()
    assert pool.vector is not None and pool.vector.dtype == torch.float32
    return pool.vector


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_formula_in_any_chunks(dtype: torch.dtype) -> None:
    states = STATES.to(dtype)
    wide = states.float()
    for ends in ((), (1,), (7, 8, 15), (22,)):
        mean = pooled(HiddenPool("mean", normalize=False), states, *ends)
        torch.testing.assert_close(mean, wide.mean(0), atol=1e-6, rtol=1e-6)
        assert mean.equal(pooled(HiddenPool("mean", normalize=False), states))
        assert pooled(HiddenPool("last", normalize=False), states, *ends).equal(wide[-1])


def test_cut_and_then_normalised() -> None:
    vector = pooled(HiddenPool("last", dimensions=5), STATES)
    torch.testing.assert_close(vector, STATES[-1, :5] / STATES[-1, :5].norm())
    assert not pooled(HiddenPool("mean"), torch.zeros(3, 4)).any()


def test_recomputed_positions_are_pooled_once() -> None:
    pool = HiddenPool("mean", normalize=False)
    pool.add(STATES[:10], 0)
    assert pool.wanted(0, 7, is_last=False) == range(10, 7)  # none
    assert pool.wanted(7, 14, is_last=False) == range(10, 14)
    pool.add(STATES[10:14], 10)
    assert pool.wanted(14, 23, is_last=True) == range(14, 23)
    pool.add(STATES[14:], 14)
    pool.finish()
    assert pool.vector is not None
    torch.testing.assert_close(pool.vector, STATES.mean(0), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_an_error(pooling: str, wrong: float) -> None:
    states = STATES.clone()
    states[-1, 3] = wrong
    with pytest.raises(InvalidScoresError, match="float32"):
        pooled(HiddenPool(pooling), states)  # type: ignore[arg-type]
