"""Draws follow softmax, and depend on seed, row, position and token alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncgen.engine.sampling.random_draws import HashDraw, gumbel_noise, mix64
from tests.cases import for_each, some

# The 99.9 % points of chi-square, by degrees of freedom.
CHI_SQUARE = {1: 10.83, 2: 13.82, 4: 18.47, 9: 27.88}


def test_hashes_equal_recorded_values() -> None:
    # A recorded answer is repeated by its seed only as long as these hold.
    assert mix64(0) == 0xE220A8397B1DCDAF  # the first output of SplitMix64 with state 0
    assert mix64(0, 0, 0) == 0x238275BC38FCBE91
    assert mix64(7, 0, 12) == 0x6198869F97799861
    assert mix64(2**64 - 1, 3, 10**6) == 0x063DDDFED907C5BF


def test_noise_equals_recorded_values() -> None:
    noise = gumbel_noise(mix64(7, 0, 12), torch.arange(5))
    torch.testing.assert_close(
        noise,
        torch.tensor([0.5140569, -0.5268507, 0.6559397, 3.6021855, 0.0896182]),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.gate
@pytest.mark.parametrize("size", some([5, 2, 3, 10], 1))
@for_each("vary", ["position", "seed", "row"])
def test_draws_follow_softmax(size: int, vary: str) -> None:
    generator = torch.Generator().manual_seed(size)
    scores = torch.randn(1, size, generator=generator)
    count = 4000
    if vary == "position":
        drawn = [int(HashDraw(3)(scores, position)) for position in range(count)]
    elif vary == "seed":
        drawn = [int(HashDraw(seed)(scores, 5)) for seed in range(count)]
    else:
        drawn = HashDraw(3)(scores.expand(count, -1), 5).tolist()
    expected = torch.softmax(scores[0], dim=-1) * count
    observed = torch.bincount(torch.tensor(drawn), minlength=size)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < CHI_SQUARE[size - 1]


def test_adjacent_positions_draw_independently() -> None:
    scores = torch.zeros(1, 3)
    draw = HashDraw(11)
    drawn = [int(draw(scores, position)) for position in range(6001)]
    pairs = torch.zeros(3, 3)
    for first, second in zip(drawn, drawn[1:], strict=False):
        pairs[first, second] += 1
    expected = 6000 / 9
    assert float(((pairs - expected) ** 2 / expected).sum()) < 26.12  # 8 degrees of freedom


def test_noise_is_finite_and_standard() -> None:
    noise = gumbel_noise(mix64(1, 2, 3), torch.arange(1_000_000))
    assert bool(torch.isfinite(noise).all())
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.005)
    assert float(noise.var()) == pytest.approx(1.6449, abs=0.02)
    assert len(torch.unique(noise)) > 900_000


@given(st.integers(-(2**70), 2**70), st.integers(0, 10**6), st.integers(1, 6))
def test_a_row_draws_the_same_in_any_batch(seed: int, position: int, rows: int) -> None:
    scores = torch.randn(rows, 40, generator=torch.Generator().manual_seed(rows))
    draw = HashDraw(seed)
    together = draw(scores, position)
    assert together.shape == (rows,) and together.dtype is torch.int64
    assert int(draw(scores[:1], position)) == int(together[0])
    longer = torch.cat((scores, scores))
    assert draw(longer, position)[:rows].tolist() == together.tolist()


def test_banned_tokens_change_no_other_draw() -> None:
    scores = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    draw = HashDraw(5)
    for position in range(200):
        chosen = int(draw(scores, position))
        fewer = scores.clone()
        fewer[0, [token for token in range(0, 50, 2) if token != chosen]] = -torch.inf
        assert int(draw(fewer, position)) == chosen


def test_banned_tokens_are_never_drawn() -> None:
    scores = torch.full((1, 20), -torch.inf)
    scores[0, [3, 17]] = 0.0
    drawn = {int(HashDraw(1)(scores, position)) for position in range(60)}
    assert drawn == {3, 17}


@pytest.mark.parametrize("bad", [[torch.nan, 0.0], [-torch.inf, -torch.inf]])
def test_rows_without_a_choice_are_refused(bad: list[float]) -> None:
    with pytest.raises(FloatingPointError, match="position 9"):
        HashDraw(1)(torch.tensor([[0.0, 1.0], bad]), 9)


def test_rows_and_seeds_differ() -> None:
    scores = torch.zeros(8, 1000)
    drawn = HashDraw(1)(scores, 0).tolist()
    assert len(set(drawn)) > 5
    assert HashDraw(2)(scores, 0).tolist() != drawn
    assert HashDraw(1 + 2**64)(scores, 0).tolist() == drawn


def test_successive_draws_are_those_of_each_position_alone() -> None:
    scores = torch.randn(6, 40)
    draw = HashDraw(9)
    found = draw.successive(scores, 13)
    assert found.tolist() == [int(draw(scores[i : i + 1], 13 + i)[0]) for i in range(6)]


def test_streams_are_independent_and_stream_0_is_the_default() -> None:
    scores = torch.zeros(1, 50)
    draws = torch.tensor(
        [[int(HashDraw(seed)(scores, 5, stream)[0]) for stream in (0, 1, 2)] for seed in range(300)]
    )
    assert draws[0, 0] == HashDraw(0)(scores, 5)[0]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert int((draws[:, one] == draws[:, other]).sum()) < 30


def test_uniform_numbers_are_even_and_a_function_of_seed_position_and_stream() -> None:
    numbers = HashDraw(4).uniform(0, 4000)
    assert numbers.dtype is torch.float32
    assert 0.0 <= float(numbers.min()) and float(numbers.max()) < 1.0
    counts = torch.histc(numbers, 10, 0.0, 1.0)
    assert float(((counts - 400) ** 2 / 400).sum()) < 40
    assert torch.equal(HashDraw(4).uniform(100, 5), numbers[100:105])
    assert not torch.equal(HashDraw(4).uniform(100, 5, stream=1), numbers[100:105])
    assert not torch.equal(HashDraw(5).uniform(100, 5), numbers[100:105])
