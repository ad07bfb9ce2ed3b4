"""Numbers of a `config.json` take no memory that the stored weights do not justify."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import save_file

import asyncgen
from asyncgen.errors import ModelLoadError
from tests.cases import for_each
from tests.doubles.checkpoints import CONFIG, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

DEMO = Path(asyncgen.__file__).with_name("demo")


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[str, int], Path]:
    """Copies the bundled model, with another number."""

    def change(key: str, value: int) -> Path:
        folder = tmp_path / f"{key} {value}"
        shutil.copytree(DEMO, folder)
        settings = json.loads((DEMO / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**settings, key: value}))
        return folder

    return change


@for_each(
    "key",
    [
        *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim"),
        *("num_attention_heads", "num_key_value_heads"),
    ],
)
@for_each("value", [10**7, 10**9, 10**30])
def test_sizes_without_weights_are_refused(
    changed: Callable[[str, int], Path], key: str, value: int
) -> None:
    with pytest.raises(ModelLoadError, match=f"`{key}` is {value}"):
        asyncgen.load_model(changed(key, value), device="cpu", progress=False)


def test_more_layers_than_any_model_has_are_refused(tmp_path: Path) -> None:
    """Each costs milliseconds, however small its weights are."""
    settings = {**CONFIG, "num_hidden_layers": 513}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelLoadError, match="`num_hidden_layers` is 513: .*, 512 at most"):
        asyncgen.load_model(tmp_path, device="cpu", progress=False)


@pytest.mark.gate
@for_each("value", [10**7, 10**9])
def test_a_long_context_has_memory_when_it_is_used(
    changed: Callable[[str, int], Path], value: int
) -> None:
    """A table of so many positions would have 64 GB."""
    folder = changed("max_position_embeddings", value)
    answers = []
    for source in ("demo", folder):
        with asyncgen.LLM(source, device="cpu", progress=False) as llm:
            answers.append(llm.generate("One day", max_new_tokens=8, temperature=0).text)
    assert answers[0] == answers[1]


def test_layers_that_are_names_of_one_are_refused(tmp_path: Path) -> None:
    """A file of megabytes would be a model of gigabytes."""
    tensors = save_checkpoint(tmp_path, num_hidden_layers=1)
    others = {
        name.replace("layers.0", f"layers.{number}"): name
        for number in range(1, 100)
        for name in tensors
        if "layers.0" in name
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata=others)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 100}))
    with pytest.raises(ModelLoadError, match="gives the same tensors to many layers: .* 4 times"):
        asyncgen.load_model(tmp_path, device="cpu", progress=False)
