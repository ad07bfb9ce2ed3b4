"""Live beams and complete hypotheses, against exhaustive enumeration on a tiny vocabulary."""

from __future__ import annotations

import itertools

import pytest
import torch

from asyncgen.generation.strategies.beam_pool import BeamPool, BeamRules, Candidates

END = 0


def _rules(beams: int, early: bool | str = False, penalty: float = 1.0) -> BeamRules:
    return BeamRules(beams, early, penalty, max_length=5, filler=END, num_ends=1)


def _log_probs(ids: tuple[int, ...], size: int) -> torch.Tensor:
    """Log-probabilities ``[size]`` after a sequence, a function of the sequence alone."""
    seed = sum((place + 1) * 7919 ** (token + 1) for place, token in enumerate(ids)) % 2**31
    draws = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return torch.log_softmax(draws, dim=-1)


def _search(rules: BeamRules, size: int, longest: int) -> BeamPool:
    """Run a search over `_log_probs` until nothing better can come."""
    pool = BeamPool(torch.tensor([[1]]), rules)
    while True:
        rows = [_log_probs(tuple(ids), size) for ids in pool.rows.tolist()]
        total = pool.total(torch.stack(rows))
        best = torch.topk(total, min(rules.num_candidates, total.shape[1]))
        found = Candidates(best.indices // size, best.indices % size, best.values)
        full = pool.length + 1 >= longest
        hits = found.tokens == END if not full else torch.ones_like(found.tokens, dtype=torch.bool)
        pool.advance(found, hits)
        if bool(hits.all()) or bool(pool.is_closed.all()):
            return pool


def _enumerate(size: int, longest: int, penalty: float) -> dict[tuple[int, ...], float]:
    """Every complete sequence after the prompt, with its score."""
    scores = {}
    for count in range(1, longest):
        for tail in itertools.product(range(size), repeat=count):
            if END in tail[:-1] or (tail[-1] != END and count < longest - 1):
                continue
            ids: tuple[int, ...] = (1,)
            total = 0.0
            for token in tail:
                total += float(_log_probs(ids, size)[token])
                ids = (*ids, token)
            scores[ids] = total / count**penalty
    return scores


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_enough_beams_find_the_best_of_all(penalty: float) -> None:
    scores = _enumerate(3, 5, penalty)
    pool = _search(_rules(27, "never", penalty), 3, 5)
    expected = sorted(scores.values(), reverse=True)
    found = pool.complete.scores[0][pool.is_complete[0]].tolist()
    assert found[:5] == pytest.approx(expected[:5], abs=1e-5)
    length = int(pool.complete.lengths[0, 0])
    best = tuple(pool.complete.ids[0, 0, :length].tolist())
    assert scores[best] == pytest.approx(expected[0], abs=1e-5)


@pytest.mark.parametrize("early", [True, False, "never"])
def test_complete_beams_are_ranked_with_true_scores(early: bool | str) -> None:
    scores = _enumerate(4, 5, 1.0)
    pool = _search(_rules(3, early), 4, 5)
    ranked = pool.complete.scores[0].tolist()
    assert ranked == sorted(ranked, reverse=True)
    for place, length in enumerate(pool.complete.lengths[0].tolist()):
        ids = tuple(pool.complete.ids[0, place, :length].tolist())
        assert scores[ids] == pytest.approx(ranked[place], abs=1e-5)
        assert (pool.complete.origins[0, place] >= 0).sum() == length - 1


def test_early_stopping_asks_for_as_many_as_there_are_beams() -> None:
    pool = BeamPool(torch.tensor([[1]]), _rules(2, early=True))
    found = Candidates(
        torch.tensor([[0, 0, 0, 0]]),
        torch.tensor([[END, 1, 2, 3]]),
        torch.tensor([[-1.0, -2.0, -3.0, -4.0]]),
    )
    assert pool.advance(found, found.tokens == END).tolist() == [[1, 2]]
    assert pool.is_closed.tolist() == [False]
    assert pool.is_complete.tolist() == [[True, False]]
    found.scores -= 10
    pool.advance(found, found.tokens == END)
    assert pool.is_closed.tolist() == [True]
    kept = pool.complete.scores.clone()
    found.scores += 10
    pool.advance(found, found.tokens == END)  # better, but too late
    assert torch.equal(pool.complete.scores, kept)


def test_an_end_among_the_lower_half_does_not_count() -> None:
    pool = BeamPool(torch.tensor([[1]]), _rules(2))
    found = Candidates(
        torch.tensor([[0, 0, 0, 0]]),
        torch.tensor([[1, 2, END, 3]]),
        torch.tensor([[-1.0, -2.0, -3.0, -4.0]]),
    )
    pool.advance(found, found.tokens == END)
    assert not pool.is_complete.any()


def test_room_grows() -> None:
    pool = BeamPool(torch.tensor([[1, 1], [2, 2]]), _rules(2))
    tokens = torch.tensor([[3, 4, 5, 6]] * 2)
    for step in range(600):
        found = Candidates(
            torch.tensor([[0, 1, 0, 1]] * 2), tokens, torch.tensor([[-1.0, -2.0, -3.0, -4.0]] * 2)
        )
        pool.advance(found, torch.zeros(2, 4, dtype=torch.bool))
        assert pool.length == 3 + step
    assert pool.rows.shape == (4, 602)
    assert pool.rows[0, 2:].tolist() == [3] * 600
    assert pool.rows[3, 2:].tolist() == [4] * 600
    assert pool.live.origins[1, 1, :600].tolist() == [3] * 600
