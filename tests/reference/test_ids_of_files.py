"""Token ids of a model's files: what is none is refused when they are read, others when used."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen import LLM
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.families.config import ModelConfig
from asyncgen.reference.load_model import load_model
from asyncgen.reference.model_loader import read_generation_config
from tests.cases import for_each
from tests.doubles.checkpoints import CONFIG, save_checkpoint
from tests.doubles.models import byte_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
NONE: tuple[Any, ...] = (True, 1.5, "2", [True], [[1]], {}, 2**64, -(2**64), [1, 2**64])


def write(folder: Path, file: str, content: object) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / file).write_text(text, encoding="utf-8")


@for_each(("name", "value"), [(name, value) for name in NAMES for value in NONE])
def test_what_is_no_id_is_refused_by_name_when_the_file_is_read(
    name: str, value: Any, tmp_path: Path
) -> None:
    write(tmp_path, "generation_config.json", {name: value})
    with pytest.raises(ModelLoadError) as caught:
        read_generation_config(tmp_path, ModelConfig.from_hf(CONFIG))
    message = str(caught.value)
    assert f"generation_config.json: `{name}` is " in message and "must be" in message


@for_each("value", NONE)
def test_what_is_no_id_in_config_json(value: Any, tmp_path: Path) -> None:
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        with pytest.raises(ModelLoadError, match=f"config.json: `{name}` is .*must be a token id"):
            ModelConfig.from_hf({**CONFIG, name: value})
    write(tmp_path, "config.json", {**CONFIG, "decoder_start_token_id": value})
    config = ModelConfig.from_hf({**CONFIG, "decoder_start_token_id": value})
    with pytest.raises(ModelLoadError, match="config.json: `decoder_start_token_id` is"):
        read_generation_config(tmp_path, config)


@for_each("content", ["", "{", "[]", "3", "null", '{"eos_token_id": 2', "\ufeff{}", '{"a": NaN} x'])
def test_a_broken_file_of_defaults_never_counts_as_absent(content: str, tmp_path: Path) -> None:
    write(tmp_path, "generation_config.json", content)
    with pytest.raises(ModelLoadError, match=re.escape("generation_config.json")):
        read_generation_config(tmp_path, ModelConfig.from_hf(CONFIG))


def test_a_folder_of_that_name_never_counts_as_absent(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").mkdir()
    with pytest.raises(ModelLoadError, match=r"generation_config.json.* is a folder"):
        read_generation_config(tmp_path, ModelConfig.from_hf(CONFIG))


def test_an_error_over_a_file_of_defaults_is_short(tmp_path: Path) -> None:
    for content in ({"eos_token_id": "x" * 300_000}, {"x" * 300_000: 1, "validate": "y" * 300_000}):
        write(tmp_path, "generation_config.json", content)
        with pytest.raises(ModelLoadError) as caught:
            read_generation_config(tmp_path, ModelConfig.from_hf(CONFIG))
        assert len(str(caught.value)) < 4500


@for_each("place", ["generation_config.json", "config.json"])
@for_each("pad", [-1, 96, 10**9])
def test_padding_that_the_model_has_not_is_refused_where_rows_are_filled(
    place: str, pad: int, tmp_path: Path
) -> None:
    """Real files name -1, or a token of a larger tokenizer; one row needs none."""
    save_checkpoint(tmp_path)
    write(tmp_path, "generation_config.json", {"eos_token_id": [3, 4, 5, 6]})
    if place == "config.json":
        (tmp_path / "generation_config.json").unlink()
    known = json.loads((tmp_path / place).read_text(encoding="utf-8"))
    write(tmp_path, place, {**known, "pad_token_id": pad})
    model: Any = load_model(tmp_path, progress=False)
    one, two = torch.tensor([[7, 8]]), torch.tensor([[7, 8], [9, 10]])
    assert model.generate(one, max_new_tokens=3).shape[0] == 1
    assert model.generate(one, max_new_tokens=3, num_beams=2).shape[0] == 1
    refused = re.escape(f"`pad_token_id` is {pad}: rows that end are filled with it, so it must be")
    with pytest.raises(InvalidRequestError, match=refused):
        model.generate(two, max_new_tokens=3)
    with pytest.raises(InvalidRequestError, match=refused):
        model.generate(one, max_new_tokens=3, do_sample=True, num_return_sequences=3)
    assert model.generate(two, max_new_tokens=3, pad_token_id=0).shape[0] == 2
    with LLM(model, tokenizer=byte_tokenizer()) as llm:  # requests fill no rows
        assert len(llm.generate([7, 8], max_new_tokens=3, n=2, do_sample=True).samples) == 2


@for_each("end", [-1, 96, [-1, 10**9]])
def test_an_end_that_the_model_has_not_never_comes_and_is_told(
    end: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint(tmp_path)
    write(tmp_path, "generation_config.json", {"eos_token_id": end})
    with caplog.at_level(logging.WARNING, "asyncgen.models"):
        model: Any = load_model(tmp_path, progress=False)
    assert "and the model's ids are from 0 to 95: no text ends by it" in caplog.text
    one, two = torch.tensor([[7, 8]]), torch.tensor([[7, 8], [9, 10]])
    found = model.generate(one, max_new_tokens=5, min_new_tokens=2)
    assert found.shape == (1, 7)
    with pytest.raises(InvalidRequestError, match="`pad_token_id` is .*must be from 0 to 95"):
        model.generate(two, max_new_tokens=5)  # it is the padding as well


@for_each("begin", [-1, 96, 10**9])
def test_a_beginning_that_the_model_has_not_is_refused_where_a_text_begins_with_it(
    begin: int, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path, bos_token_id=begin)
    model: Any = load_model(tmp_path, progress=False)
    assert model.generate(torch.tensor([[7, 8]]), max_new_tokens=2).shape == (1, 4)
    refused = f"`bos_token_id` is {begin}: a sequence begins with it, so it must be from 0 to 95"
    with pytest.raises(InvalidRequestError, match=refused):
        model.generate(max_new_tokens=2)
