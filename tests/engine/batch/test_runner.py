"""Scheduled rows become one packed pass whose logits are those of each row alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.engine.batch.runner import BatchRunner
from asyncgen.engine.scheduling.state import RequestState, ScheduledRow
from asyncgen.models.attention.dense import DenseAttention
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from tests.models.build import random_config, random_model

if TYPE_CHECKING:
    from asyncgen.models.decoder import DecoderLM


def expected(core: DecoderLM, ids: list[int]) -> torch.Tensor:
    """Logits after a whole sequence, densely."""
    attention = DenseAttention(core.config, DynamicCache())
    return core.decode(torch.tensor([ids]), torch.arange(len(ids))[None], attention)[0]


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_chunks_and_single_tokens_in_one_pass(model_type: str) -> None:
    core = random_model(random_config(model_type))
    runner = BatchRunner(core, PagedAttention(core.config, PagedStorage(core.config, 16, 4)))
    first = RequestState("first", [1, 2, 3, 4, 5], block_tables=[[0, 1]])
    second = RequestState("second", [9, 8, 7, 6, 5, 4, 3], block_tables=[[2, 3]])
    logits = runner.logits(
        [
            ScheduledRow(first, 0, 5, first.block_tables[0], True),
            ScheduledRow(second, 0, 4, second.block_tables[0], False),
        ]
    )
    assert logits.shape[0] == 1
    torch.testing.assert_close(logits[0], expected(core, first.tokens), atol=1e-4, rtol=1e-4)
    first.tokens.append(11)
    logits = runner.logits(
        [
            ScheduledRow(first, 5, 1, first.block_tables[0], True),
            ScheduledRow(second, 4, 3, second.block_tables[0], True),
        ]
    )
    for row, state in enumerate((first, second)):
        torch.testing.assert_close(logits[row], expected(core, state.tokens), atol=1e-4, rtol=1e-4)


def test_a_pass_without_an_end() -> None:
    core = random_model(random_config("llama"))
    runner = BatchRunner(core, PagedAttention(core.config, PagedStorage(core.config, 4, 4)))
    state = RequestState("only", [1, 2, 3, 4], block_tables=[[0]])
    assert runner.logits([ScheduledRow(state, 0, 2, [0], False)]).shape[0] == 0
