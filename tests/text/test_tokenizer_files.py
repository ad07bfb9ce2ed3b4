"""Tests of `asyncgen.text.tokenizer_files`: the files of a tokenizer, whole and broken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer as Backend

from asyncgen.checkpoints import tokenizer_sizes
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.text.setting_kinds import NO_MAX_LENGTH
from asyncgen.text.special_tokens import ROLES
from asyncgen.text.tokenizer import Tokenizer
from asyncgen.text.tokenizer_files import read_backend, read_settings, read_tokenizer
from tests.cases import for_each
from tests.doubles.tokenizers import save_tokenizer, tokenizer_json

if TYPE_CHECKING:
    from pathlib import Path


def test_tokenizer_json_is_enough(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level")
    (tmp_path / "tokenizer_config.json").unlink()
    settings = read_settings(tmp_path)
    assert settings.special_tokens == {} and settings.chat_template is None
    assert settings.model_max_length == NO_MAX_LENGTH
    assert settings.padding_side == "left"
    assert read_backend(tmp_path, settings).get_vocab_size() > 256


def test_map_wins_unless_the_config_lists_its_tokens_by_id(tmp_path: Path) -> None:
    """As in the reference; a null role of the config hides nothing."""
    config = {"eos_token": "<|im_end|>", "pad_token": None}
    save_tokenizer(tmp_path, "byte_level", **config)
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": "<|im_start|>", "pad_token": {"content": "<|endoftext|>"}})
    )
    assert read_settings(tmp_path).special_tokens == {
        "eos_token": "<|im_start|>",
        "pad_token": "<|endoftext|>",
    }
    save_tokenizer(tmp_path, "byte_level", **config, added_tokens_decoder={})
    assert read_settings(tmp_path).special_tokens == {"eos_token": "<|im_end|>"}


def test_special_tokens_beyond_the_vocabulary_are_added(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level", pad_token="<pad>", additional_special_tokens=["<x>"])
    size = Backend.from_str(tokenizer_json("byte_level")).get_vocab_size()
    added = {"<tool>": size + 1, "<first>": size}
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    settings = read_settings(tmp_path)
    backend = read_backend(tmp_path, settings)
    vocabulary = backend.get_vocab()
    ids = [vocabulary[token] for token in ("<first>", "<tool>", "<pad>", "<x>")]
    assert ids == [size, size + 1, size + 2, size + 3]
    assert backend.decode(ids, skip_special_tokens=True) == "<first><tool>"


def test_added_tokens_of_another_tokenizer(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<tool>": 9999}))
    with pytest.raises(ModelLoadError, match="'<tool>' should have id 9999, but .*"):
        read_backend(tmp_path, read_settings(tmp_path))


def test_a_token_of_the_model_becomes_special_in_place(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "wordpiece", eos_token="the")
    backend = read_backend(tmp_path, read_settings(tmp_path))
    assert (
        backend.get_vocab_size()
        == read_backend(
            save_tokenizer(tmp_path / "plain", "wordpiece"), read_settings(tmp_path / "plain")
        ).get_vocab_size()
    )
    ids = backend.encode("the fox", add_special_tokens=False).ids
    assert backend.decode(ids, skip_special_tokens=True) == "fox"


def test_long_lengths_are_whole_numbers(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level", model_max_length=1e30)
    assert read_settings(tmp_path).model_max_length == NO_MAX_LENGTH
    assert isinstance(read_settings(tmp_path).model_max_length, int)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("tokenizer.model", "tokenizer.model is no model of SentencePiece"),
        ("vocab.json", "has vocab.json but no tokenizer.json, and is without a class.*; convert"),
        (
            "vocab.txt",
            "has vocab.txt but no tokenizer.json, and is .*; convert it once with",
        ),
        ("config.json", "has no tokenizer.json; copy the tokenizer's files there"),
    ],
)
def test_no_tokenizer_json(tmp_path: Path, file: str, message: str) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(ModelLoadError, match=message):
        read_tokenizer(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="there is no folder '.*nothing'"):
        read_tokenizer(tmp_path / "nothing")


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "Nothing"}}', "not json"])
def test_broken_tokenizer_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelLoadError, match=r"tokenizer.json is not a tokenizer file \(.*again"):
        read_backend(tmp_path, read_settings(tmp_path))


@pytest.mark.parametrize(
    "config",
    [
        {"eos_token": 5},
        {"eos_token": {"text": "x"}},
        {"padding_side": "up"},
        {"model_max_length": "long"},
        {"added_tokens_decoder": {"x": {"content": "y"}}},
        {"added_tokens_decoder": [1]},
        {"chat_template": [{"name": "default"}]},
        {"chat_template": 5},
    ],
)
def test_broken_settings(tmp_path: Path, config: dict[str, object]) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="tokenizer_config.json.* has an entry of the wrong"):
        read_settings(tmp_path)


def test_prefix_space_inside_a_sequence(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level")
    file = tmp_path / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    step = state["pre_tokenizer"]
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [step]}
    file.write_text(json.dumps(state), encoding="utf-8")
    settings = read_settings(tmp_path)
    plain = read_backend(tmp_path, settings)
    spaced = read_backend(tmp_path, settings, add_prefix_space=True)
    assert spaced.encode("dog").ids == plain.encode(" dog").ids != plain.encode("dog").ids
    assert read_backend(tmp_path, settings, add_prefix_space=False).encode("dog").ids == (
        plain.encode("dog").ids
    )


@pytest.mark.parametrize("steps", [3, [], "ByteLevel", {"pretokenizers": 3}, {"type": "No"}])
def test_prefix_space_of_steps_that_are_none(tmp_path: Path, steps: object) -> None:
    save_tokenizer(tmp_path, "byte_level")
    file = tmp_path / "tokenizer.json"
    state = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**state, "pre_tokenizer": steps}), encoding="utf-8")
    for prefix in (None, True):
        with pytest.raises(ModelLoadError, match="is not a tokenizer file"):
            read_backend(tmp_path, read_settings(tmp_path), add_prefix_space=prefix)


def test_prefix_space_where_there_is_none(tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "wordpiece")
    with pytest.raises(InvalidRequestError, match="`add_prefix_space` is True.*put the space"):
        read_backend(tmp_path, read_settings(tmp_path), add_prefix_space=True)


MANY = [f"<{number}>" for number in range(200)]
TOO_MANY: dict[str, dict[str, object]] = {
    "listed": {"extra_special_tokens": MANY},
    "listed as before": {"additional_special_tokens": MANY},
    "by name": {"extra_special_tokens": {token[1:-1]: token for token in MANY}},
    "by a key": {f"a{token[1:-1]}_token": token for token in MANY},
    "by id": {"added_tokens_decoder": {str(300 + i): {"content": f"<{i}>"} for i in range(200)}},
}


@for_each("kind", TOO_MANY)
def test_more_special_tokens_than_any_model_has(kind: str, tmp_path: Path) -> None:
    save_tokenizer(tmp_path, "byte_level", **TOO_MANY[kind])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_sizes, "MOST_ADDED", 199)
        with pytest.raises(ModelLoadError, match=r"has 2\d\d added tokens; at most 199 are read"):
            Tokenizer.from_folder(tmp_path)


@for_each("key", ["eos_token", "image_token", "extra_special_tokens"])
def test_a_special_token_that_is_too_long(key: str, tmp_path: Path) -> None:
    token = "x" * 4097
    save_tokenizer(tmp_path, "byte_level", **{key: [token] if key.startswith("extra") else token})
    with pytest.raises(ModelLoadError, match="the added token 'xx.* has 4097 characters; at most"):
        Tokenizer.from_folder(tmp_path)


def test_special_tokens_do_not_take_the_place_of_methods(tmp_path: Path) -> None:
    roles = (*ROLES, *(f"{role}_id" for role in ROLES))
    names = [*(name for name in dir(Tokenizer) if name not in roles), "_squares", "_roles"]
    named = dict.fromkeys([*names, "image_token"], "<|image|>")
    save_tokenizer(tmp_path, "byte_level", extra_special_tokens=named)
    tokenizer: Any = Tokenizer.from_folder(tmp_path)
    assert tokenizer.image_token == "<|image|>"
    assert tokenizer.image_token_id == tokenizer.convert_tokens_to_ids("<|image|>")
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    own = vars(tokenizer).items()
    assert [name for name, value in own if value == "<|image|>"] == ["image_token"]


def test_more_listed_templates_than_are_read(tmp_path: Path) -> None:
    listed = [{"name": f"t{number}", "template": "a"} for number in range(101)]
    save_tokenizer(tmp_path, "byte_level", chat_template=listed)
    with pytest.raises(
        ModelLoadError, match=r"config.json has 101 templates; at most 100 are read"
    ):
        read_settings(tmp_path)
    save_tokenizer(tmp_path, "byte_level", chat_template={"a": "x" * 2**24, "b": "y"})
    with pytest.raises(ModelLoadError, match=r"templates of more than 16777216 characters togethe"):
        read_settings(tmp_path)
