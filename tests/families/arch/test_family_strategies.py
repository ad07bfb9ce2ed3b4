"""Every family under every way to decode, keep and store it; its switches under ``-m soak``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import asyncgen
from tests.cases import some
from tests.doubles.tokenizers import save_tokenizer
from tests.families.arch.families import FAMILIES
from tests.families.arch.proofs import CHEAP, PROOFS, make_pair
from tests.families.arch.test_experts import VARIANTS as OF_EXPERTS
from tests.families.arch.test_families import one_thread
from tests.families.arch.variants import VARIANTS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["one_thread"]

pytest.importorskip("transformers")

CHECKPOINTS: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILIES),
    *((family, overrides) for family, several in VARIANTS.items() for overrides in several),
    *OF_EXPERTS,
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> asyncgen.Tokenizer:
    return asyncgen.load_tokenizer(save_tokenizer(tmp_path_factory.mktemp("text"), "byte_level"))


@pytest.mark.parametrize("family", some(FAMILIES, 24))
def test_a_family_is_preempted_rounded_and_stored(
    family: str, tmp_path: Path, tokenizer: asyncgen.Tokenizer
) -> None:
    pair = make_pair(family, tmp_path)
    for name in CHEAP:
        PROOFS[name](pair, tokenizer)


@pytest.mark.soak
@pytest.mark.parametrize("proof", PROOFS)
@pytest.mark.parametrize(("family", "overrides"), CHECKPOINTS)
def test_every_checkpoint_passes_every_proof(
    family: str, overrides: dict[str, Any], proof: str, tmp_path: Path, tokenizer: Any
) -> None:
    PROOFS[proof](make_pair(family, tmp_path, **overrides), tokenizer)


def test_there_are_enough_checkpoints() -> None:
    assert len(CHECKPOINTS) >= 200
    for family in FAMILIES:
        assert len([each for each, overrides in CHECKPOINTS if each == family and overrides]) >= 3
