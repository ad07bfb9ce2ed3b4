"""Whether sequences grew by one token is found out, or taken on trust."""

from __future__ import annotations

import torch

from asyncgen.generation.logits.growth import Growth


def test_only_one_token_more_of_the_same_rows_is_growth() -> None:
    ids = torch.arange(12).view(2, 6)
    growth = Growth()
    assert not growth.by_one(ids[:, :2])
    assert growth.by_one(ids[:, :3])
    assert not growth.by_one(ids[:, :3])
    assert not growth.by_one(ids[:, :5])
    assert not growth.by_one(ids[:1, :6])
    assert not growth.by_one(ids[:, :5])
    assert not growth.by_one(ids.flip(0))


def test_a_buffer_that_is_written_to_is_noticed() -> None:
    ids = torch.arange(6).view(1, 6)
    growth = Growth()
    growth.by_one(ids[:, :3])
    ids[0, 0] = 9
    assert not growth.by_one(ids[:, :4])


def test_trust_looks_at_lengths_alone() -> None:
    ids = torch.arange(12).view(2, 6)
    growth = Growth(append_only=True)
    assert not growth.by_one(ids[:, :2])
    assert growth.by_one(ids.flip(0)[:, :3])
    assert not growth.by_one(ids[:, :5])
    assert not growth.by_one(ids[:1])
