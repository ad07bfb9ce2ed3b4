"""Many rows draw at once what each draws alone, and the bounds behind it are bounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.engine.sampling import random_draws as draws
from asyncgen.engine.sampling.random_draws import HashDraw, HashDraws, draw_among, gumbel_noise

CPU = torch.device("cpu")


def keys_of(sources: list[HashDraw], position: int) -> torch.Tensor:
    """Keys of one position, one source a row."""
    return torch.tensor([source.key(0, position) for source in sources])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([50, 2048, 4096, 5003, 20001]),
    st.integers(0, 2**64 - 1),
    st.sampled_from([0.0, 0.2, 3.0, 30.0, 1e6]),
    st.sampled_from(["all", "few", "ties"]),
)
def test_rows_draw_the_same_in_a_batch_as_alone(
    size: int, seed: int, scale: float, kind: str
) -> None:
    scores = torch.randn(5, size, generator=torch.Generator().manual_seed(seed % 1000)) * scale
    if kind == "few":
        scores[torch.rand(5, size) < 0.99] = -torch.inf
        scores[:, 3] = 0.0
    elif kind == "ties":
        scores = scores.round()
    sources = [HashDraw(seed + row) for row in range(5)]
    tokens, best = HashDraws(size, CPU)(scores, keys_of(sources, 7))
    assert tokens.tolist() == [
        int(source.draw_row(0, scores[row], 7)) for row, source in enumerate(sources)
    ]
    assert bool(best.isfinite().all())


def test_the_first_token_wins_if_noise_is_lost_in_rounding() -> None:
    scores = torch.full((2, 5000), 2.0**40)
    tokens, _ = HashDraws(5000, CPU)(scores, torch.tensor([1, 2]))
    assert tokens.tolist() == [0, 0]


@pytest.mark.parametrize("size", [100, 6000])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_cannot_be_drawn_from_shows(size: int, bad: float) -> None:
    scores = torch.randn(3, size)
    scores[1, 40] = bad
    scores[2] = -torch.inf
    tokens, best = HashDraws(size, CPU)(scores, torch.tensor([1, 2, 3]))
    assert best.isfinite().tolist() == [True, False, False]
    assert tokens[0] == draw_among(scores[:1], torch.arange(size)[None], torch.tensor([1]))[0][0]


@settings(max_examples=40, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([0.0, 3.0, 1e3]))
def test_no_noisy_score_is_above_its_bound(key: int, scale: float) -> None:
    scores = torch.randn(1, 30000, generator=torch.Generator().manual_seed(key % 999)) * scale
    bounds = draws._Bounds(torch.arange(30000), 1)
    above = bounds.above(scores, torch.tensor([key]))
    noisy = scores + gumbel_noise(key, torch.arange(30000))
    assert bool((above >= bounds.safely_below(noisy)).all())
    # And they are of use: at the top they are hardly more than what they bound.
    high = gumbel_noise(key, torch.arange(30000)) > 5
    slack = (above + bounds._CONSTANT - noisy)[0, high]
    assert float(slack.max()) < 0.08 + 1e-5 * scale


def test_tiny_and_huge_hashes_have_bounds() -> None:
    # x where the rounding is worst: about 0, about 2**33, 2**34 and the ends of the range.
    places = [0, 1, 2**33, 2**34, 2**34 + 513, 2**57, 2**62, 2**63 - 1]
    values = torch.tensor([sign * place for place in places for sign in (1, -1)] + [-(2**63)])
    floats = values.float().abs().sub(2.0**34)
    bound = floats.view(torch.int32).float() * draws._Bounds._SLOPE + draws._Bounds._CONSTANT
    for x, above in zip(values.tolist(), bound.tolist(), strict=True):
        for low in (0, 2**33 - 1):  # what the last step of the hash may make of the low bits
            bits = ((x % 2**64) >> 33 << 33) + low
            u = ((bits >> 12) + 0.5) * 2.0**-52
            noise = -torch.log(-torch.log(torch.tensor(u, dtype=torch.float64)))
            assert above >= float(noise) - 1e-4


def test_few_rows_take_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = draws.draw_among

    def counted(scores: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(scores.numel())
        return original(scores, *rest)

    monkeypatch.setattr(draws, "draw_among", counted)
    draw = HashDraws(16384, CPU)
    for seed in range(20):
        scores = torch.randn(8, 16384, generator=torch.Generator().manual_seed(seed))
        draw(scores, torch.arange(8) + 100 * seed)
    assert sum(calls) < 160 * 16384 * 0.1
