"""Tests of `asyncgen.reference.auto`: the documented names, and what they refuse."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.reference.auto import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from tests.cases import for_each
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.tokenizers import save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(path)
    return save_tokenizer(path, "byte_level")


@for_each(
    "options",
    [
        {},
        {"device_map": "auto"},
        {"device_map": "cpu"},
        {"device_map": torch.device("cpu")},
        {"device_map": {"": "cpu"}},
        {"use_safetensors": True, "trust_remote_code": False, "low_cpu_mem_usage": True},
        {"attn_implementation": "sdpa", "token": None, "revision": None, "subfolder": ""},
        {"attn_implementation": "eager", "low_cpu_mem_usage": False, "config": None},
        {"load_in_8bit": False, "quantization_config": None, "force_download": False},
    ],
)
def test_model(folder: Path, options: dict[str, Any]) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    assert model.dtype is torch.float32
    assert model.name_or_path == str(folder)


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_both_names_of_dtype(folder: Path, name: str) -> None:
    options: dict[str, Any] = {name: torch.bfloat16}
    assert AutoModelForCausalLM.from_pretrained(folder, **options).dtype is torch.bfloat16
    with pytest.raises(InvalidRequestError, match="`torch_dtype` is 'float16': `dtype` is float32"):
        AutoModelForCausalLM.from_pretrained(folder, dtype="float32", torch_dtype="float16")


@for_each(
    ("options", "message"),
    [
        ({"load_in_2bit": True}, "`load_in_2bit` is True: .* does not take it; it takes .*'dtype'"),
        ({"quantization_config": {}}, "`quantization_config` is {}: give a `BitsAndBytes"),
        ({"quantize": "int8", "load_in_4bit": True}, "`quantize` is 'int8': `load_in_4bit` says"),
        ({"quantize": "int3"}, "`quantize` is 'int3'"),
        ({"trust_remote_code": True}, "remote code is never run"),
        ({"use_safetensors": False}, "pickle weights are never opened"),
        ({"low_cpu_mem_usage": "no"}, "`low_cpu_mem_usage` is 'no'"),
        ({"attn_implementation": "flash_attention_2"}, "use 'sdpa'"),
        ({"force_download": True}, "`force_download` is True"),
        ({"subfolder": "else"}, "`subfolder` is 'else': there is no such folder"),
        ({"config": {"use_cache": False}}, "`config` is 'dict': give what `AutoConfig"),
        ({"vocab_size": 7}, "`vocab_size` is 7: .* does not take it"),
        ({"device_map": "balanced"}, "the model stays in one piece"),
        ({"device_map": {"layers.0": 0, "layers.1": 1}}, "the model stays in one piece"),
        ({"device_map": 1.5}, "the model stays in one piece"),
        ({"revision": "main"}, "only a repository on the hub has revisions"),
    ],
)
def test_model_refuses(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        AutoModelForCausalLM.from_pretrained(folder, **options)


def test_tokenizer(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.padding_side == "left"
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"


def test_tokenizer_overrides(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(
        folder,
        use_fast=True,
        padding_side="right",
        truncation_side="left",
        model_max_length=12,
        chat_template="x",
        pad_token="<|im_start|>",
        add_prefix_space=True,
    )
    assert tokenizer.padding_side == "right" and tokenizer.truncation_side == "left"
    assert tokenizer.model_max_length == 12
    assert tokenizer.pad_token == "<|im_start|>"
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "x"
    assert tokenizer.encode("dog") == AutoTokenizer.from_pretrained(folder).encode(" dog")


@for_each(
    ("options", "message"),
    [
        ({"use_fast": False}, "only fast tokenizers are read"),
        ({"trust_remote_code": True}, "remote code is never run"),
        ({"legacy": True}, "`legacy` is True: `tokenizer.json` says how"),
        ({"verbose": True}, "`verbose` is True: .* does not take it; it takes .*'padding_side'"),
        ({"padding_side": "up"}, "`padding_side` is 'up'"),
        ({"pad_token": "[PAD]"}, r"`pad_token` is '\[PAD\]': it is not in the vocabulary"),
    ],
)
def test_tokenizer_refuses(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        AutoTokenizer.from_pretrained(folder, **options)


def test_a_subfolder(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder.parent, subfolder=folder.name)
    assert model.num_parameters() == AutoModelForCausalLM.from_pretrained(folder).num_parameters()
    tokenizer = AutoTokenizer.from_pretrained(str(folder.parent), subfolder=folder.name)
    assert tokenizer.decode(tokenizer.encode("Hello")) == "Hello"
    assert AutoConfig.from_pretrained(folder.parent, subfolder=folder.name).vocab_size == 96


def test_from_pretrained_sets_config_keywords_on_the_config(folder: Path) -> None:
    config = AutoConfig.from_pretrained(folder)
    assert config.model_type == "llama" and config.hidden_size == 32
    config.use_cache = False
    config.note = "mine"
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, pad_token_id=5)
    assert model.config.pad_token_id == 5 and model.config.note == "mine"
    assert model(torch.tensor([[1, 2]])).past_key_values is None
    assert config.pad_token_id != 5
    again = AutoModelForCausalLM.from_pretrained(folder, use_cache=True, output_attentions=True)
    assert again(torch.tensor([[1, 2]])).attentions is not None


def test_a_configuration_of_another_network(folder: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, hidden_size=16)
    config = AutoConfig.from_pretrained(tmp_path)
    with pytest.raises(InvalidRequestError, match="`config` is 'llama': it describes another"):
        AutoModelForCausalLM.from_pretrained(folder, config=config)


@pytest.mark.parametrize("name", [AutoModelForCausalLM, AutoTokenizer, AutoConfig])
def test_editors_show_every_keyword(name: Any) -> None:
    shown = inspect.signature(name.from_pretrained).parameters
    assert {"pretrained_model_name_or_path", "revision", "token", "subfolder"} <= shown.keys()
    assert not any(one.kind is one.VAR_KEYWORD for one in shown.values())
