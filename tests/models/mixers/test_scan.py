"""Convolution and recurrence against their formulas, and bit for bit however a text is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from asyncgen.models.mixers.scan import convolve, scan, silu, softplus
from tests.cases import for_each

ROWS, LENGTH, HEADS, SIZE = 2, 9, 8, 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def test_the_convolution_is_torchs() -> None:
    inputs, before = drawn(ROWS, LENGTH, 5), drawn(ROWS, 4, 5)
    weight, bias = drawn(4, 5), drawn(5)
    found, window = convolve(inputs, before, weight, bias)
    every = torch.cat((before[:, 1:], inputs), dim=1).mT
    expected = torch.conv1d(every, weight.t()[:, None], bias, groups=5).mT
    torch.testing.assert_close(found, expected)
    assert torch.equal(window, inputs[:, -4:])
    assert torch.equal(convolve(inputs[:, :1], before, weight, None)[1][:, :3], before[:, 1:])


@for_each("numbers", [1, 7, 16])
@for_each("groups", [1, 4])
@for_each("is_shared", [True, False])
def test_the_recurrence_is_the_formula_token_by_token(
    numbers: int, groups: int, is_shared: bool
) -> None:
    state, steps = drawn(ROWS, HEADS, SIZE, numbers), drawn(ROWS, LENGTH, HEADS).abs()
    decay = -drawn(HEADS, 1 if is_shared else numbers).abs()
    inputs = drawn(ROWS, LENGTH, HEADS, SIZE)
    sides = [drawn(ROWS, LENGTH, groups, numbers, seed=seed) for seed in (1, 2)]
    before = state.clone()
    found, behind = scan(state, steps, decay, inputs, *sides)
    assert torch.equal(state, before)  # a step may be run again

    enter, leave = (side.repeat_interleave(HEADS // groups, dim=2).double() for side in sides)
    kept = state.double()
    for token in range(LENGTH):
        step = steps[:, token, :, None, None].double()
        kept = kept * torch.exp(step * decay[:, None].double())
        new = inputs[:, token, :, :, None].double() * enter[:, token, :, None]
        kept = kept + step * new
        expected = (kept * leave[:, token, :, None]).sum(-1)
        torch.testing.assert_close(found[:, token], expected.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(behind, kept.float(), atol=1e-5, rtol=1e-5)

    cut, going = [], state
    for first, end in ((0, 1), (1, 5), (5, LENGTH)):
        parts = [side[:, first:end] for side in sides]
        some, going = scan(going, steps[:, first:end], decay, inputs[:, first:end], *parts)
        cut.append(some)
    assert torch.equal(torch.cat(cut, dim=1), found)
    assert torch.equal(going, behind)
    alone, _ = scan(state[:1], steps[:1], decay, inputs[:1], *(side[:1] for side in sides))
    assert torch.equal(alone, found[:1])


@pytest.mark.parametrize("name", ["silu", "softplus"])
def test_activations_are_torchs_and_do_not_depend_on_the_length(name: str) -> None:
    function = {"silu": silu, "softplus": softplus}[name]
    given = drawn(257) * 12
    found = function(given)
    torch.testing.assert_close(found, getattr(torch.nn.functional, name)(given))
    assert torch.equal(torch.cat([function(part) for part in torch.split(given, 3)]), found)
