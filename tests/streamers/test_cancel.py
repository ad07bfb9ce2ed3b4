"""A flag that is a stopping criterion."""

from __future__ import annotations

import torch

from streamers.cancel import Cancelled


def test_it_is_a_flag() -> None:
    flag = Cancelled()
    assert not flag
    assert not flag.is_set()
    flag.set()
    flag.set()
    assert flag
    assert flag.is_set()


def test_it_is_a_stopping_criterion() -> None:
    flag = Cancelled()
    ids = torch.zeros(3, 5, dtype=torch.long)
    assert flag(ids, torch.zeros(3, 7)).tolist() == [False] * 3
    flag.set()
    answer = flag(ids, None, past=1)
    assert answer.tolist() == [True] * 3
    assert answer.dtype == torch.bool
