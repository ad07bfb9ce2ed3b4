"""A mask with gaps counts what the reference counts: kept tokens, or columns in a few places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from tests.cases import for_each
from tests.families.arch.proofs import make_pair

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from tests.families.arch.proofs import Pair

pytest.importorskip("transformers")

GAPS = torch.tensor([[5, 6, 7, 0, 0, 0, 8, 9, 11, 4], [0, 0, 5, 6, 7, 0, 8, 9, 17, 3]])
MASK = (GAPS != 0).long()
KEPT = (GAPS[:1, MASK[0].bool()], GAPS[1:, MASK[1].bool()])

FALCON = {"alibi": True, "new_decoder_architecture": False}
COUNT_TOKENS: list[tuple[str, dict[str, Any]]] = [
    ("bloom", {"n_head": 6, "hidden_size": 48}),
    ("falcon", FALCON),
    ("opt", {}),
]
"""Families whose reference counts kept tokens in a plain call too."""
COUNT_COLUMNS: list[tuple[str, dict[str, Any]]] = [("mpt", {}), ("gemma2", {})]
"""Families with distances of columns: of the scores of MPT, of windows."""
OTHERS: list[tuple[str, dict[str, Any]]] = [("gpt2", {}), ("llama", {}), ("gpt_neo", {})]


def kept_logits(model: Any, **options: Any) -> Tensor:
    found: Tensor = model(GAPS, attention_mask=MASK, **options).logits
    return found[MASK.bool()]


def generated(model: Any) -> tuple[Tensor, Tensor]:
    call: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "output_logits": True}
    found = model.generate(GAPS, attention_mask=MASK, return_dict_in_generate=True, **call)
    return found.sequences, torch.stack(found.logits)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def generates_alike(pair: Pair) -> None:
    (tokens, found), (expected, logits) = generated(pair.ours), generated(pair.theirs)
    assert torch.equal(tokens, expected)
    close(found, logits)


@torch.no_grad()
@for_each("family, options", COUNT_TOKENS)
def test_kept_tokens_are_counted(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    pair = make_pair(family, tmp_path / family, **options)
    found = kept_logits(pair.ours)
    close(found, kept_logits(pair.theirs))
    close(found, torch.cat([pair.ours(ids).logits[0] for ids in KEPT]))
    generates_alike(pair)


@torch.no_grad()
@for_each("family, options", COUNT_COLUMNS[:1])
def test_columns_are_counted(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    columns_as_the_reference(make_pair(family, tmp_path / family, **options))


@torch.no_grad()
@pytest.mark.gate
@for_each("family, options", COUNT_COLUMNS[1:] + OTHERS)
def test_gaps_are_read_as_by_the_reference(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    columns_as_the_reference(make_pair(family, tmp_path / family, **options))


def columns_as_the_reference(pair: Pair) -> None:
    positions = (MASK.cumsum(1) - 1).masked_fill(MASK == 0, 0)
    options = {} if pair.ours.config.model_type == "mpt" else {"position_ids": positions}
    close(kept_logits(pair.ours, **options), kept_logits(pair.theirs, **options))
    generates_alike(pair)


@torch.no_grad()
def test_a_padded_turn_behind_a_cache_counts_kept_tokens(tmp_path: Path) -> None:
    pair, cache = make_pair("bloom", tmp_path), DynamicCache()
    for end in (2, 5, 6):  # the gap lies between calls, and in one
        pair.ours(
            GAPS[:, cache.get_seq_length() : end],
            attention_mask=MASK[:, :end],
            past_key_values=cache,
        )
    call: dict[str, Any] = {"output_logits": True, "return_dict_in_generate": True}
    call |= {"do_sample": False, "max_new_tokens": 4}
    found = pair.ours.generate(GAPS, attention_mask=MASK, past_key_values=cache, **call)
    for row, ids in enumerate(KEPT):
        alone = pair.ours.generate(ids, **call)
        for step, logits in enumerate(found.logits):
            close(logits[row], alone.logits[step][0])
