"""Sizes of a tokenizer that is built of other files than ``tokenizer.json``."""

from __future__ import annotations

import pytest

from asyncgen.checkpoints import tokenizer_sizes
from asyncgen.checkpoints.gguf.tokenizer import merges_by_score
from asyncgen.checkpoints.tokenizer_sizes import check_added, check_size
from asyncgen.errors import ModelLoadError
from asyncgen.runtime.wanted import UnwantedError, asking


def test_merges_that_are_found_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a" * length for length in range(1, 9)]
    found = merges_by_score("it", texts, [1] * 8, [0.0] * 8)
    assert len(found) == 28
    monkeypatch.setattr(tokenizer_sizes, "MOST_PARTS", 35)
    with pytest.raises(ModelLoadError, match="it: its model has 8 tokens and at least 28 merges"):
        merges_by_score("it", texts, [1] * 8, [0.0] * 8)
    with asking(lambda: False), pytest.raises(UnwantedError):
        merges_by_score("it", texts, [1] * 8, [0.0] * 8)


def test_the_largest_tokenizers_of_real_models_are_read() -> None:
    check_size("Gemma", 262_144, 514_906)
    check_size("XLM-V", 901_629)
    check_added("Gemma", 6_414, 100_000)
