from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from apps.bench.checkpoints import SHAPES
from apps.bench.models import Checkpoint, checkpoint
from tests.apps.bench.test_checkpoints import TINY

if TYPE_CHECKING:
    from pathlib import Path


def test_a_shape_is_made_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "5m", TINY)
    with checkpoint("5m", None, "float32") as found:
        assert found.vocab == TINY.vocab and not found.has_end
        assert found.floor(8) == {}
    assert not found.folder.exists()


@pytest.mark.parametrize("where", ["config.json", "generation_config.json"])
def test_a_model_that_ends_by_itself_is_kept_from_it(tmp_path: Path, where: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 10}))
    (tmp_path / where).write_text(json.dumps({"vocab_size": 10, "eos_token_id": 2}))
    assert Checkpoint.at(tmp_path).floor(8) == {"min_new_tokens": 8}


def test_prompts_are_of_the_vocabulary_and_differ_by_seed(tmp_path: Path) -> None:
    found = Checkpoint(tmp_path, vocab=400, has_end=False)
    assert len(found.prompt(32, seed=1)) == 32
    assert found.prompt(32, seed=1) == found.prompt(32, seed=1) != found.prompt(32, seed=2)
    assert all(100 <= token < 300 for token in found.prompt(32, seed=1))


def test_the_bundled_model_is_found() -> None:
    with checkpoint("demo", None, "float32") as found:
        assert (found.folder / "model.safetensors").exists()
        assert found.has_end
