"""Models whose layers differ in shape: what they store, what they refuse, and torch's way."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen import LLM, native
from asyncgen.cache.layer_groups import plan_groups
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.families.config import ModelConfig
from tests.cases import for_each
from tests.doubles.models import byte_tokenizer
from tests.families.arch.families import COMMON, FAMILIES, make
from tests.families.arch.variants import VARIANTS

if TYPE_CHECKING:
    from pathlib import Path

EXPERTS = next(each for each in VARIANTS["gemma4_text"] if "enable_moe_block" in each)
PROMPTS = [[5, 17, 3, 44, 9, 21, 80], [7, 8], list(range(3, 40))]


def read(**keys: Any) -> ModelConfig:
    file = {**COMMON, **FAMILIES["gemma4_text"], **keys}
    return ModelConfig.from_hf({"model_type": "gemma4_text", **file})


def test_layers_that_read_others_store_nothing() -> None:
    plan = plan_groups(read())
    assert plan.sources == (0, 1, 2, 3, 3, 2)
    assert sorted(layer for group in plan.groups for layer in group.layers) == [0, 1, 2, 3]
    places = plan.places()
    assert places[4] == places[3] and places[5] == places[2]


def test_sizes_of_layers_are_read_in_either_spelling() -> None:
    keys = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    sizes = {"head_dim": 12, "num_key_value_heads": 1}
    listed = {"global_head_dim": 99, "per_layer_config": {"2": sizes, "05": sizes}}
    first, second = read(**keys), read(**keys, **listed)
    assert first == second and (first.head_dim, first.num_key_value_heads) == (12, 2)
    assert "head_dim" in first.to_dict() and first.to_dict()["head_dim"] == 8


def test_the_first_ten_layers_of_a_gemma3n_are_sparse() -> None:
    file = {"model_type": "gemma3n_text", "num_hidden_layers": 12, "num_kv_shared_layers": 2}
    plans = [plan.varied for plan in ModelConfig.from_hf(file).layer_plans]
    assert [plan and plan.sparsity for plan in plans] == [0.95] * 10 + [0.0] * 2
    for key, value in (
        ("activation_sparsity_pattern", [0.5] * 11),
        ("activation_sparsity_pattern", [1.0] * 12),
        ("intermediate_size", [8] * 11),
        ("altup_active_idx", 1),
    ):
        with pytest.raises(ModelLoadError, match=f"`{key}` is"):
            ModelConfig.from_hf({**file, key: value})


@for_each(
    ("key", "value"),
    [
        ("per_layer_config", {"2": {"rope_theta": 1.0}}),
        ("per_layer_config", {"two": {"head_dim": 8}}),
        ("per_layer_config", {"2": {"head_dim": 0}}),
        ("num_kv_shared_layers", 6),
        ("num_kv_shared_layers", 5),
        ("num_kv_shared_layers", 1.5),
        ("layer_types", ["full_attention"] * 5 + ["sliding_attention"]),
        ("vocab_size_per_layer_input", 90),
        ("use_bidirectional_attention", "all"),
        ("num_key_value_heads", 3),
    ],
)
def test_impossible_config_values_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ModelLoadError, match=f"`{key}` is"):
        read(**{key: value})


def test_tables_by_id_need_ids(tmp_path: Path) -> None:
    make("gemma4_text", tmp_path)
    model = asyncgen.load_model(tmp_path, dtype="float32")
    embeddings = torch.zeros(1, 3, 32)
    with pytest.raises(InvalidRequestError, match="give `input_ids`"):
        model(inputs_embeds=embeddings)
    with pytest.raises(InvalidRequestError, match="give `input_ids`"):
        model.generate(inputs_embeds=embeddings, max_new_tokens=2)
    with pytest.raises(InvalidRequestError, match="tables of 96 rows of their own"):
        model.resize_token_embeddings(100)


@pytest.mark.parametrize(
    ("family", "keys"), [("llama", {}), ("gemma3n_text", {}), ("gemma4_text", EXPERTS)]
)
def test_a_model_that_was_pickled_is_the_same(
    family: str, keys: dict[str, Any], tmp_path: Path
) -> None:
    make(family, tmp_path, **keys)
    model = asyncgen.load_model(tmp_path, dtype="float32")
    ids = torch.tensor(PROMPTS[:1])
    expected = model(ids).logits
    assert torch.equal(pickle.loads(pickle.dumps(model))(ids).logits, expected)


@pytest.mark.parametrize(
    ("family", "keys"), [("gemma3n_text", {}), ("gemma4_text", {}), ("gemma4_text", EXPERTS)]
)
def test_torch_computes_the_same(
    family: str, keys: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(family, tmp_path, **keys)
    options: dict[str, Any] = {"dtype": "float32", "page_size": 7, "tokenizer": byte_tokenizer()}
    answers = []
    for kernels in (native.kernels, None):
        monkeypatch.setattr(native, "kernels", kernels)
        with LLM(tmp_path, **options) as llm:
            found = llm.generate(PROMPTS, max_new_tokens=20, do_sample=False)
            answers.append([list(one.token_ids) for one in found])
    assert answers[0] == answers[1]
