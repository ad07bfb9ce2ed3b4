"""Draws are a pure function of seed, position and token, and follow the distribution."""

from __future__ import annotations

import pytest
import torch

from asyncgen.engine.sampler import HashDraw, gumbel_noise, mix64


def test_mix64_is_written_down() -> None:
    # A change of these values changes what every seed means.
    assert [mix64(), mix64(0), mix64(1), mix64(1, 2, 3), mix64(2**64 - 1)] == [
        0,
        0xE220A8397B1DCDAF,
        mix64(1),
        mix64(1, 2, 3),
        mix64(-1),
    ]
    assert mix64(1, 2) != mix64(2, 1)


def test_noise_is_the_same_wherever_the_token_stands() -> None:
    ids = torch.arange(5000)
    noise = gumbel_noise(mix64(7, 0, 3), ids)
    shuffled = torch.randperm(5000)
    assert torch.equal(gumbel_noise(mix64(7, 0, 3), ids[shuffled]), noise[shuffled])
    assert not torch.equal(gumbel_noise(mix64(8, 0, 3), ids), noise)


def test_noise_is_finite_and_gumbel() -> None:
    noise = torch.cat([gumbel_noise(mix64(seed), torch.arange(250_000)) for seed in range(4)])
    assert bool(torch.isfinite(noise).all())
    assert noise.dtype is torch.float32
    # Mean: Euler's constant; variance: pi squared over six.
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.var()) - 1.6449) < 0.02


@pytest.mark.parametrize("banned", [0, 3])
def test_draws_follow_the_distribution(banned: int) -> None:
    scores = torch.tensor([[0.3, -1.0, 1.2, 0.0, 2.0, -0.5]])
    scores[:, :banned] = -torch.inf
    count = 6000
    draws = torch.cat([HashDraw(5)(scores, position) for position in range(count)])
    found = torch.bincount(draws, minlength=6).double()
    expected = scores[0].double().softmax(0) * count
    possible = expected > 0
    assert int(found[~possible].sum()) == 0
    deviation = ((found - expected)[possible] ** 2 / expected[possible]).sum()
    # Chi-square with at most five degrees of freedom: 20.5 is exceeded once in a thousand.
    assert float(deviation) < 20.5


def test_a_row_draws_like_the_same_row_of_a_larger_batch() -> None:
    scores = torch.randn(4, 300)
    together = HashDraw(3)(scores, 17)
    assert int(HashDraw(3)(scores[:1], 17)[0]) == int(together[0])
    # Rows of one request draw independently of each other.
    same = HashDraw(3)(scores[:1].expand(64, -1), 17)
    assert len(set(same.tolist())) > 4


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_nothing_to_draw_from_is_an_error(value: float) -> None:
    with pytest.raises(FloatingPointError, match="position 9"):
        HashDraw(0)(torch.full((1, 5), value), 9)


def test_one_nan_among_good_scores_is_an_error() -> None:
    scores = torch.zeros(1, 8)
    scores[0, 3] = float("nan")
    with pytest.raises(FloatingPointError):
        HashDraw(0)(scores, 1)


def test_any_integer_is_a_seed() -> None:
    scores = torch.randn(1, 50)
    for seed in (-1, 0, 2**64 - 1, 2**200):
        HashDraw(seed)(scores, 1)
    assert HashDraw(2**64 + 5)(scores, 1).tolist() == HashDraw(5)(scores, 1).tolist()


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
