"""Random files beside ``tokenizer.json``: read as transformers 5.23 does, or refused by name."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncgen.errors import ModelLoadError
from asyncgen.text.tokenizer import Tokenizer
from tests.doubles.tokenizers import tokenizer_json

transformers = pytest.importorskip("transformers", "5.23")

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
KNOWN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "the", "a"]
NEW = ["<new>", "<x>", "<y>"]
TYPES = (
    "gpt2 gpt_neox llama mistral qwen2 qwen3 qwen3_5_text gemma3_text cohere2 t5 olmo phi3 bloom"
).split()
CLASSES = (
    "PreTrainedTokenizerFast TokenizersBackend GPT2Tokenizer GPT2TokenizerFast GPTNeoXTokenizerFast"
    " Qwen2Tokenizer LlamaTokenizer LlamaTokenizerFast GemmaTokenizer CohereTokenizerFast"
    " RobertaTokenizer CodeLlamaTokenizer FromMarsTokenizer"
).split()


def is_typed(token: Any) -> dict[str, Any]:
    """Return a token as files of transformers write it in ``tokenizer_config.json``."""
    return {**plain(token), "__type": "AddedToken"}


def plain(token: Any) -> dict[str, Any]:
    return {
        "content": token,
        "lstrip": token == "<left>",
        "normalized": False,
        "rstrip": False,
        "single_word": False,
    }


texts = st.sampled_from(KNOWN[:3] + NEW)
forms = st.sampled_from([*KNOWN[:3], "<new>", "<left>"])  # as a text, <left> would differ
roles = st.one_of(st.none(), texts, forms.map(is_typed))
names = st.sampled_from(["image_token", "think_token"])
extras = st.one_of(
    st.none(), st.lists(texts, max_size=3), st.dictionaries(names, texts, max_size=2)
)
templates = st.one_of(
    st.just("{{ bos_token }}a"),
    st.dictionaries(st.sampled_from(["default", "tool_use"]), st.just("{{ 1 }}"), min_size=1),
    st.just([{"name": "default", "template": "x"}, {"name": "rag", "template": "y"}]),
)
configs = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(ROLES, roles),
        "image_token": texts,
        "additional_special_tokens": st.one_of(st.none(), st.lists(texts, max_size=3)),
        "extra_special_tokens": extras,
        "chat_template": templates,
        "tokenizer_class": st.sampled_from(CLASSES),
        "model_max_length": st.sampled_from([77, 1e30, None]),
        "truncation_side": st.sampled_from(["left", "right"]),
        "clean_up_tokenization_spaces": st.booleans(),
        "added_tokens_decoder": st.booleans(),
    },
)
maps = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(ROLES, st.one_of(texts, forms.map(plain))),
            "additional_special_tokens": st.lists(texts, max_size=3),
            "extra_special_tokens": st.lists(texts, max_size=2),
        },
    ),
)


def write(folder: Path, model_type: str, config: dict[str, Any], token_map: Any) -> None:
    backend = json.loads(tokenizer_json("byte_level"))
    (folder / "tokenizer.json").write_text(json.dumps(backend), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    config = dict(config)
    if config.pop("added_tokens_decoder", False):
        config["added_tokens_decoder"] = {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in backend["added_tokens"]
        } | {str(len(backend["model"]["vocab"])): {**plain("<x>"), "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if token_map is not None:
        (folder / "special_tokens_map.json").write_text(json.dumps(token_map))


def compare(model_type: str, config: dict[str, Any], token_map: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, model_type, config, token_map)
        try:
            theirs = transformers.AutoTokenizer.from_pretrained(name)
        except Exception:  # what they refuse is ours to read or to refuse
            theirs = None
        try:
            ours = Tokenizer.from_folder(folder)
        except ModelLoadError:
            assert theirs is None
            return
    if theirs is None:
        return
    assert ours.special_tokens_map == theirs.special_tokens_map
    assert ours.all_special_tokens == theirs.all_special_tokens
    assert ours.all_special_ids == theirs.all_special_ids
    assert ours.chat_template == theirs.chat_template
    assert ours.model_max_length == theirs.model_max_length
    assert ours.truncation_side == theirs.truncation_side
    if type(theirs).__name__ not in ("TokenizersBackend", "GPT2Tokenizer"):
        return  # the other classes split texts by rules of their own, whatever the file says
    for token in theirs.all_special_tokens:
        ids = theirs.encode(f"a {token} a", add_special_tokens=False)
        assert ours.encode_ids(f"a {token} a", add_special_tokens=False) == ids
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(
            ids, skip_special_tokens=True
        )


@given(model_type=st.sampled_from(TYPES), config=configs, token_map=maps)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_settings_are_read_as_the_reference_reads_them(
    model_type: str, config: dict[str, Any], token_map: Any
) -> None:
    compare(model_type, config, token_map)


@pytest.mark.soak
@given(model_type=st.sampled_from(TYPES), config=configs, token_map=maps)
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_random_settings_are_read_as_the_reference_reads_them(
    model_type: str, config: dict[str, Any], token_map: Any
) -> None:
    compare(model_type, config, token_map)
