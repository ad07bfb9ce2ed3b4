"""Tokenizers whose files say almost nothing: special tokens are those of the classes."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.families.arch import registry
from asyncgen.text.special_tokens import ROLES
from asyncgen.text.tokenizer import Tokenizer
from asyncgen.text.tokenizer_classes import _TOKENS, class_name
from tests.cases import for_each
from tests.doubles.tokenizers import save_tokenizer, tokenizer_json

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers", "5.23")
auto = pytest.importorskip("transformers.models.auto.tokenization_auto")


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def write(folder: Path, model: dict[str, Any], config: dict[str, Any], kind: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json(kind), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(model))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@for_each("name", _TOKENS)
def test_tokens_of_a_class_are_those_of_its_signature(name: str) -> None:
    parameters = inspect.signature(auto.tokenizer_class_from_name(name).__init__).parameters
    tokens = {
        key: parameter.default
        for key, parameter in parameters.items()
        if key.endswith("_token") and isinstance(parameter.default, str)
    }
    assert _TOKENS[name] == tokens, name


def test_every_class_of_the_reference_that_reads_tokenizer_json_is_known() -> None:
    """Left out are classes of speech, of proteins and of pages, which take no text alone."""
    others = {"EsmcTokenizer", "LasrTokenizer", "LukeTokenizer", "SplinterTokenizer"}
    others |= {"VideoPrismTokenizer", "Qwen2TokenizerFast", "MLukeTokenizer", "Tipsv2Tokenizer"}
    for name in {name for name in auto.TOKENIZER_MAPPING_NAMES.values() if name} - others:
        try:
            found = auto.tokenizer_class_from_name(name)
            parameters = inspect.signature(found.__init__).parameters
        except (ImportError, AttributeError):
            continue  # needs a package that is not here, or is none
        if not issubclass(found, transformers.TokenizersBackend):
            continue
        defaults = [parameters[role].default for role in ROLES if role in parameters]
        has_tokens = any(isinstance(default, str) for default in defaults)
        assert has_tokens is (name in _TOKENS), name


def test_every_model_type_has_the_class_of_the_reference() -> None:
    for model_type in registry.FAMILIES:
        theirs = auto.TOKENIZER_MAPPING_NAMES.get(model_type) or "TokenizersBackend"
        ours = class_name({}, {"model_type": model_type}, is_byte_level=False)
        assert ours == (theirs if theirs in _TOKENS else ""), model_type


@for_each(
    ("model", "config", "kind"),
    [
        ({"model_type": "gpt2"}, {"model_max_length": 1024}, "byte_level"),
        ({"model_type": "gpt_neox"}, {}, "byte_level"),
        ({"model_type": "opt"}, {"tokenizer_class": "GPT2Tokenizer"}, "byte_level"),
        ({"model_type": "t5"}, {}, "metaspace"),
        ({"model_type": "t5"}, {"additional_special_tokens": ["<extra_id_0>"]}, "metaspace"),
        ({"model_type": "t5"}, {"extra_ids": 3}, "metaspace"),
        ({"model_type": "xglm"}, {}, "metaspace"),
        ({"model_type": "llama"}, {"tokenizer_class": "LlamaTokenizer"}, "byte_fallback"),
        ({"model_type": "llama", "tokenizer_class": "LlamaTokenizer"}, {}, "byte_fallback"),
        ({"model_type": "llama"}, {"tokenizer_class": "LlamaTokenizerFast"}, "byte_level"),
        ({"model_type": "llama"}, {}, "byte_fallback"),
        ({"model_type": "mistral"}, {"tokenizer_class": "LlamaTokenizer"}, "byte_fallback"),
        ({"model_type": "gemma2"}, {}, "byte_fallback"),
        ({"model_type": "cohere"}, {}, "byte_level"),
        ({"model_type": "qwen2"}, {"tokenizer_class": "LlamaTokenizer"}, "byte_level"),
        ({"model_type": "qwen3"}, {"eos_token": None}, "byte_level"),
        ({"model_type": "stablelm"}, {"tokenizer_class": "GPTNeoXTokenizer"}, "byte_level"),
        ({"model_type": "bloom"}, {"tokenizer_class": "BertTokenizer"}, "wordpiece"),
    ],
)
def test_almost_empty_files_give_the_tokens_of_the_class(
    model: dict[str, Any], config: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    folder = write(tmp_path / "tokenizer", model, config, kind)
    ours = Tokenizer.from_folder(folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.all_special_tokens == theirs.all_special_tokens
    for token in ours.all_special_tokens:
        assert ours.encode_ids(token, add_special_tokens=False) == [
            ours.convert_tokens_to_ids(token)
        ]


def test_named_tokens_reach_templates_and_files(tmp_path: Path) -> None:
    folder = save_tokenizer(
        tmp_path / "named",
        "byte_level",
        extra_special_tokens={"think_token": "<think>", "image_token": "<|im_start|>"},
        boi_token="<boi>",
        chat_template={
            "default": "{{ think_token }}{{ boi_token }}{{ eos_token }}",
            "tool_use": "-",
        },
    )
    ours: Any = Tokenizer.from_folder(folder)
    user = [{"role": "user", "content": "x"}]
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for each in (ours, theirs):
        assert each.apply_chat_template(user, tokenize=False) == "<think><boi><|im_end|>"
        assert each.apply_chat_template(user, tokenize=False, tools=[TOOL]) == "-"
    assert ours.think_token == theirs.think_token == "<think>"
    assert ours.image_token_id == theirs.image_token_id
    assert ours.special_tokens_map == theirs.special_tokens_map
    with pytest.raises(AttributeError, match="audio_token"):
        _ = ours.audio_token
    ours.save_pretrained(tmp_path / "saved")
    for again in (
        Tokenizer.from_folder(tmp_path / "saved"),
        transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved"),
    ):
        assert again.special_tokens_map == ours.special_tokens_map
        assert again.all_special_ids == ours.all_special_ids
        assert again.apply_chat_template(user, tokenize=False) == "<think><boi><|im_end|>"
