"""Log-probabilities are those of the raw logits."""

from __future__ import annotations

import pytest
import torch

from asyncgen.engine.logprobs import token_logprob
from tests.doubles.models import byte_tokenizer


@pytest.mark.parametrize("top", [0, 1, 5, 999])
def test_against_log_softmax(top: int) -> None:
    tokenizer = byte_tokenizer()
    logits = torch.randn(len(tokenizer), generator=torch.Generator().manual_seed(1)) * 3
    expected = torch.log_softmax(logits, -1)
    found = token_logprob(logits, 65, top, tokenizer)
    assert (found.token_id, found.token) == (65, "A")
    assert found.logprob == pytest.approx(float(expected[65]))
    assert len(found.top) == min(top, len(tokenizer))
    assert [entry.logprob for entry in found.top] == sorted(expected.tolist(), reverse=True)[:top]
    assert all(entry.token == tokenizer.decode([entry.token_id]) for entry in found.top)
