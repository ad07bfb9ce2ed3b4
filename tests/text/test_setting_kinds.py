"""Tests of `asyncgen.text.setting_kinds`: settings of a wrong kind are refused by name."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.errors import ModelLoadError
from asyncgen.text.setting_kinds import NO_MAX_LENGTH
from asyncgen.text.tokenizer import Tokenizer
from asyncgen.text.tokenizer_files import read_settings
from tests.cases import for_each
from tests.doubles.tokenizers import save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

WRONG: list[tuple[str, str]] = [
    ("model_max_length", "-5"),
    ("model_max_length", "0"),
    ("model_max_length", "true"),
    ("model_max_length", "1.9"),
    ("model_max_length", "NaN"),
    ("model_max_length", "-Infinity"),
    ("model_max_length", '"512"'),
    ("model_max_length", "[512]"),
    ("clean_up_tokenization_spaces", '"false"'),
    ("clean_up_tokenization_spaces", "1"),
    ("add_bos_token", '"no"'),
    ("add_eos_token", "0"),
    ("add_prefix_space", '"True"'),
    ("legacy", "[]"),
    ("padding_side", "3"),
    ("padding_side", "null"),
    ("truncation_side", '"Left"'),
    ("truncation_side", '["left"]'),
    ("extra_special_tokens", '"abc"'),
    ("extra_special_tokens", "[1]"),
    ("extra_special_tokens", '{"image_token": 7}'),
    ("additional_special_tokens", '"<x>"'),
    ("additional_special_tokens", '[{"content": "<x>", "lstrip": "false"}]'),
    ("eos_token", "2"),
    ("bos_token", "false"),
    ("unk_token", '""'),
    ("pad_token", '{"content": "<|endoftext|>", "special": "no"}'),
    ("mask_token", '["<mask>"]'),
    ("extra_ids", "-1"),
    ("extra_ids", "1000000000"),
    ("extra_ids", '"100"'),
    ("tokenizer_class", "3"),
    ("chat_template", "5"),
    ("chat_template", '{"default": 1}'),
    ("chat_template", '[{"name": "default"}]'),
    ("added_tokens_decoder", '[{"content": "<x>"}]'),
    ("added_tokens_decoder", '{"x": {"content": "<x>"}}'),
    ("added_tokens_decoder", '{"-1": {"content": "<x>"}}'),
    ("added_tokens_decoder", '{"99999999999999999999": {"content": "<x>"}}'),
    ("added_tokens_decoder", '{"5": {"content": 5}}'),
    ("added_tokens_decoder", '{"5": {"content": "<x>", "special": "true"}}'),
    ("added_tokens_decoder", '{"5": "<x>"}'),
]


def fresh(folder: Path) -> Path:
    """Write a tokenizer into a new folder; return that."""
    return save_tokenizer(folder / str(len(list(folder.iterdir()))), "byte_level")


def write_config(folder: Path, key: str, value: str) -> Path:
    found = fresh(folder)
    (found / "tokenizer_config.json").write_text(f'{{"{key}": {value}}}')
    return found


@for_each(("key", "value"), WRONG)
def test_settings_of_a_wrong_kind_are_refused_by_name(key: str, value: str, tmp_path: Path) -> None:
    folder = write_config(tmp_path, key, value)
    with pytest.raises(ModelLoadError) as caught:
        Tokenizer.from_folder(folder)
    message = str(caught.value)
    assert message.startswith(str(folder / "tokenizer_config.json"))
    assert f"`{key}` is " in message and "must be" in message, message


@for_each(
    ("key", "value", "attribute", "read"),
    [
        ("model_max_length", "Infinity", "model_max_length", NO_MAX_LENGTH),
        ("model_max_length", "1e30", "model_max_length", NO_MAX_LENGTH),
        ("model_max_length", "1000000000000000019884624838656", "model_max_length", NO_MAX_LENGTH),
        ("model_max_length", "null", "model_max_length", NO_MAX_LENGTH),
        ("model_max_length", "512.0", "model_max_length", 512),
        ("clean_up_tokenization_spaces", "null", "clean_up_tokenization_spaces", False),
        ("padding_side", '"right"', "padding_side", "right"),
        ("eos_token", "null", "eos_token", None),
        ("extra_special_tokens", "null", "all_special_tokens", []),
        ("extra_special_tokens", '{"image_token": "<|im_start|>"}', "image_token", "<|im_start|>"),
        ("added_tokens_decoder", "{}", "all_special_tokens", []),
        ("errors", "3", "all_special_tokens", []),  # nothing here reads it
    ],
)
def test_settings_that_real_files_have_are_read(
    key: str, value: str, attribute: str, read: object, tmp_path: Path
) -> None:
    folder = write_config(tmp_path, key, value)
    assert getattr(Tokenizer.from_folder(folder), attribute) == read


@for_each(
    ("file", "content", "named"),
    [
        ("special_tokens_map.json", {"eos_token": 5}, "`eos_token` is 5"),
        ("special_tokens_map.json", {"extra_special_tokens": "abc"}, "special_tokens` is 'abc'"),
        ("special_tokens_map.json", {"pad_token": {"lstrip": True}}, "`pad_token` is {'lstrip"),
        ("added_tokens.json", {"<x>": "400"}, "`<x>` is '400'"),
        ("added_tokens.json", {"<x>": -1}, "`<x>` is -1"),
        ("added_tokens.json", {"<x>": True}, "`<x>` is True"),
        ("added_tokens.json", {"<x>": 400.5}, "`<x>` is 400.5"),
        ("config.json", {"tokenizer_class": ["GPT2Tokenizer"]}, "`tokenizer_class` is ['GPT2"),
    ],
)
def test_the_file_of_a_wrong_entry_is_named(
    file: str, content: dict[str, Any], named: str, tmp_path: Path
) -> None:
    folder = fresh(tmp_path)
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(ModelLoadError, match=re.escape(named)) as caught:
        read_settings(folder)
    assert str(caught.value).startswith(str(folder / file))


FILES = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")


@for_each(
    ("file", "content"),
    [(file, content) for file in FILES for content in ("", "{", "[]", "\ufeff{}", "3")],
)
def test_a_broken_file_never_counts_as_absent(file: str, content: str, tmp_path: Path) -> None:
    folder = fresh(tmp_path)
    (folder / file).write_text(content, encoding="utf-8")
    with pytest.raises(ModelLoadError, match=re.escape(file)):
        read_settings(folder)


def test_an_error_over_a_long_value_is_short(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level", eos_token=["x" * 300_000])
    with pytest.raises(ModelLoadError) as caught:
        read_settings(tmp_path)
    assert len(str(caught.value)) < 4500
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"y" * 300_000: 9_999}))
    with pytest.raises(ModelLoadError) as caught:
        Tokenizer.from_folder(tmp_path)
    assert len(str(caught.value)) < 4500
    assert len(str(ModelLoadError("z" * 3_000_000))) < 4500
