"""Masks of grammars: banned in place, in any rows, as the plain formula bans."""

from __future__ import annotations

import pytest
import torch

from asyncgen import native
from asyncgen.generation.logits.grammar_mask import ban, unpack_mask


@pytest.fixture(params=["own", "torch"], autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of banning."""
    if request.param == "torch":
        monkeypatch.setattr(native, "kernels", None)
    elif native.kernels is None:
        pytest.skip("no kernels of ours here")


@pytest.mark.parametrize("size", [1, 31, 32, 33, 260, 2048, 5000])
@pytest.mark.parametrize("places", [[0], [2, 0], [0, 1, 2, 3]])
def test_tokens_without_a_set_bit_are_banned(size: int, places: list[int]) -> None:
    """Other rows, and what lies around the scores, stay as they are."""
    generator = torch.Generator().manual_seed(size)
    words = torch.randint(-(2**31), 2**31, (len(places), size // 32 + 2), generator=generator)
    words[:, -1] = 0
    words[0, 0] = -1
    words = words.to(torch.int32)
    memory = torch.full((6, size + 7), torch.nan)
    scores = memory[1:5, 3 : 3 + size]
    scores.copy_(torch.randn(4, size, generator=generator))
    expected = memory.clone()
    banned = torch.zeros(4, size, dtype=torch.bool)
    banned[places] = unpack_mask(words, size)
    expected[1:5, 3 : 3 + size].masked_fill_(banned, -torch.inf)
    for row, own in enumerate(words.tolist()):
        for token in range(min(size, 70)):
            allowed = bool(own[token // 32] >> token % 32 & 1)
            assert bool(banned[places[row], token]) is not allowed
    ban(scores, words, torch.tensor(places))
    assert torch.equal(memory.nan_to_num(9.0), expected.nan_to_num(9.0))


def test_mismatched_masks_are_refused() -> None:
    if native.kernels is None:
        pytest.skip("torch says it in its own words")
    scores, words = torch.zeros(2, 64), torch.zeros(1, 2, dtype=torch.int32)
    for wrong in (
        (scores.double(), words, torch.tensor([0])),
        (scores, words[:, :1], torch.tensor([0])),
        (scores, words.long(), torch.tensor([0])),
        (scores, words, torch.tensor([2])),
        (scores, words, torch.tensor([-1])),
        (scores, words, torch.tensor([0, 1])),
        (scores, words, torch.tensor([0.0])),
    ):
        with pytest.raises(ValueError):
            ban(*wrong)
    assert not scores.any()
