"""Configurations as dicts, JSON and files, exchanged with the reference."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers

from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.generation.config import CompileConfig, GenerationConfig
from asyncgen.generation.config.forms import CONFIG_FILE
from tests.cases import for_each
from tests.generation.alike import plain

if TYPE_CHECKING:
    from pathlib import Path

Reference = transformers.GenerationConfig


FULL: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 4,
    "bad_words_ids": [[1, 2], [3]],
    "eos_token_id": [2, 3],
    "exponential_decay_length_penalty": (3, 1.5),
    "sequence_bias": [[[1, 2], 0.5]],
    "cache_config": {"nested": {"deep": [1, None, "ü"]}},
    "custom": "kept",
}


def test_dict_and_json_round_trips() -> None:
    config = GenerationConfig(**FULL)
    assert GenerationConfig.from_dict(config.to_dict()) == config
    assert GenerationConfig.from_dict(config.to_diff_dict()) == config
    for use_diff in (True, False):
        values = json.loads(config.to_json_string(use_diff=use_diff))
        assert GenerationConfig.from_dict(values) == config
    assert "top_k" not in config.to_json_string(keys_to_pop=["top_k"])
    theirs = Reference(**FULL)
    for use_diff in (True, False):
        ours = json.loads(config.to_json_string(use_diff, ignore_metadata=True))
        assert ours == json.loads(theirs.to_json_string(use_diff, ignore_metadata=True))


def test_to_dict_is_a_deep_copy() -> None:
    config = GenerationConfig(bad_words_ids=[[1]])
    config.to_dict()["bad_words_ids"][0].append(2)
    assert config.bad_words_ids == [[1]]


def test_json_of_what_json_has_not() -> None:
    config = GenerationConfig(
        sequence_bias={(1, 2): 0.5},
        compile_config=CompileConfig(),
        suppress_tokens={3, 1},
        dtype=torch.bfloat16,
        nested={"dtype": torch.int8},
        eos_token_id=torch.tensor([1, 2]),
    )
    values = json.loads(config.to_json_string())
    assert values["sequence_bias"] == [[[1, 2], 0.5]]
    assert values["compile_config"]["backend"] == "inductor"
    assert values["suppress_tokens"] == [1, 3]
    assert values["dtype"] == "bfloat16"
    assert values["nested"] == {"dtype": "int8"}
    assert values["eos_token_id"] == [1, 2]


def test_files_are_exchanged_with_the_reference(tmp_path: Path) -> None:
    ours, theirs = GenerationConfig(**FULL), Reference(**FULL)
    ours.save_pretrained(tmp_path / "ours" / "deep")
    theirs.save_pretrained(tmp_path / "theirs")
    assert GenerationConfig.from_pretrained(tmp_path / "ours" / "deep") == ours
    assert GenerationConfig.from_pretrained(str(tmp_path / "theirs")) == ours
    read = Reference.from_pretrained(tmp_path / "ours" / "deep")
    assert read == Reference.from_pretrained(tmp_path / "theirs")


def test_saving(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="temperature"):
        GenerationConfig(temperature=0.5).save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    config = GenerationConfig(max_length=3, compile_config=CompileConfig())
    config.save_pretrained(tmp_path, "my.json")
    assert json.loads((tmp_path / "my.json").read_text()) == {"max_length": 3}
    with pytest.raises(InvalidRequestError, match="save_directory"):
        config.save_pretrained(tmp_path / "my.json")
    with pytest.raises(TypeError, match="push_to_hub"):
        config.save_pretrained(tmp_path, repo_id="a/b")


def test_saving_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[tuple[Path, dict[str, Any]]] = []

    def upload(path: Path, **options: Any) -> None:
        uploads.append((path, options))

    monkeypatch.setattr("asyncgen.generation.config.forms.upload", upload)
    GenerationConfig(max_length=3).save_pretrained(tmp_path, push_to_hub=True, token="secret")
    path = tmp_path / CONFIG_FILE
    assert uploads == [(path, {"repo_id": tmp_path.name, "token": "secret"})]


def test_loading_variants(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    GenerationConfig(max_length=3).save_pretrained(folder, "my.json")
    config = GenerationConfig.from_pretrained(
        tmp_path, "my.json", subfolder="sub", max_new_tokens=9
    )
    assert (config.max_length, config.max_new_tokens) == (3, 9)
    config, unused = GenerationConfig.from_pretrained(
        folder, "my.json", top_k=1, foo=False, do_sample=True, return_unused_kwargs=True
    )
    assert (config.top_k, unused) == (1, {"foo": False})
    assert not hasattr(config, "foo")


def test_loading_a_broken_config_file_names_the_fault(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no file .*generation_config\.json; save one"):
        GenerationConfig.from_pretrained(tmp_path)
    (tmp_path / CONFIG_FILE).write_text("{x")
    with pytest.raises(ModelLoadError, match="not valid JSON"):
        GenerationConfig.from_pretrained(tmp_path)
    (tmp_path / CONFIG_FILE).write_text("[]")
    with pytest.raises(ModelLoadError, match="JSON object"):
        GenerationConfig.from_pretrained(tmp_path)
    with pytest.raises(InvalidRequestError, match="HTTPS_PROXY"):
        GenerationConfig.from_pretrained(tmp_path, proxies={"http": "x"})


def test_from_dict() -> None:
    config = GenerationConfig.from_dict({"top_k": 3, "foo": 1}, top_k=7, do_sample=True, bar=2)
    assert (config.top_k, config.foo, config.bar) == (7, 1, 2)  # type: ignore[attr-defined]
    config, unused = GenerationConfig.from_dict({"foo": 1}, foo=2, bar=2, return_unused_kwargs=True)
    assert (config.foo, unused) == (2, {"bar": 2})  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequestError, match="max_new_tokens"):
        GenerationConfig.from_dict({"max_new_tokens": 0})


@for_each(
    "model_config",
    [
        transformers.LlamaConfig(eos_token_id=7, pad_token_id=None, bos_token_id=3),
        transformers.GPT2Config(),
        transformers.T5Config(),
        {"eos_token_id": 3, "hidden_size": 3, "decoder": {"eos_token_id": 9, "bos_token_id": 8}},
        {"text_config": {"eos_token_id": 5}, "decoder": {"eos_token_id": 6}},
        {"output_scores": True, "max_length": 20, "foo": 1},
        {"eos_token_id": None, "text_config": {"eos_token_id": 5}},
    ],
    ids=lambda config: type(config).__name__,
)
def test_from_model_config(model_config: Any) -> None:
    ours = GenerationConfig.from_model_config(model_config)
    theirs = Reference.from_model_config(model_config)
    assert plain(ours.to_diff_dict()) == plain(theirs.to_diff_dict())
