from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file

from asyncgen_apps.bench.checkpoints import SHAPES
from asyncgen_apps.bench.models import Checkpoint, checkpoint, drafted_checkpoint
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


def test_a_made_shape_comes_with_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = replace(TINY, layers=4)
    monkeypatch.setitem(SHAPES, "5m", deep)
    with drafted_checkpoint("5m", None, "float32") as found:
        assert found.draft is not None and found.foreign is not None
        folders = (found.target.folder, found.draft, found.foreign)
        target, draft, _ = (load_file(folder / "model.safetensors") for folder in folders)
        # The draft is the first layers; what the others add is faint.
        assert all(torch.equal(value, target[name]) for name, value in draft.items())
        last, first = (target[f"model.layers.{layer}.mlp.down_proj.weight"] for layer in (3, 0))
        assert last.std() < first.std() / 20
        words = [(folder / "tokenizer.json").read_bytes() for folder in folders]
        assert words[0] == words[1] != words[2]
    assert not found.target.folder.exists()


def test_a_given_model_has_no_drafts() -> None:
    with drafted_checkpoint("demo", None, "float32") as found:
        assert found.draft is None and found.foreign is None
