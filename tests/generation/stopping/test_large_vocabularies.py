"""No request copies a vocabulary: the library holds the process meanwhile, for long."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import asyncgen
from asyncgen.generation.strategies.token_healing import plan_healing
from tests.cases import for_each

ASKED: dict[str, dict[str, Any]] = {
    "stop strings": {"stop_strings": ["zz"]},
    "stop": {"stop": ["zz"]},
    "healing": {"token_healing": True},
    "dry": {"dry_multiplier": 1.0, "dry_sequence_breakers": ["zz"]},
    "beams": {"num_beams": 2, "stop_strings": ["zz"]},
}


class Counted:
    """A backend that tells how often its whole vocabulary was asked for."""

    def __init__(self, backend: Any) -> None:
        self.copies = 0
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        if name in ("get_vocab", "to_str"):
            self.copies += 1
        return getattr(self._backend, name)


@pytest.fixture(scope="module")
def llm() -> Any:
    """An engine whose tokenizer counts."""
    with asyncgen.LLM("demo", device="cpu", progress=False) as opened:
        tokenizer: Any = opened.tokenizer
        counted = Counted(tokenizer.backend_tokenizer)
        opened.generate("Hello there", max_new_tokens=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tokenizer, "backend_tokenizer", counted)
            yield opened


@for_each("kind", ASKED)
def test_no_request_copies_the_vocabulary(kind: str, llm: Any) -> None:
    backend = llm.tokenizer.backend_tokenizer
    llm.generate("Hello there", max_new_tokens=3, **ASKED[kind])
    before = backend.copies
    llm.generate("Hello there", max_new_tokens=3, **ASKED[kind])
    assert backend.copies == before


def test_tokenizers_of_others_heal_by_their_vocabulary() -> None:
    ours: Any = asyncgen.load_tokenizer("demo")

    class Other:
        all_special_ids = ours.all_special_ids
        get_vocab = staticmethod(ours.get_vocab)
        decode = staticmethod(ours.decode)

    row = ours.encode("Once upon a ti")
    found = [plan_healing(each, [row], 2048).bias for each in (ours, Other())]
    assert torch.equal(*found)
    assert (found[0] != 0).any()
