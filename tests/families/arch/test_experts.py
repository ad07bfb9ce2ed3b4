"""Families with experts: switches of their routers, both layouts of files, both precisions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import asyncgen
from asyncgen import native
from asyncgen.errors import ModelLoadError
from tests.doubles.tokenizers import save_tokenizer
from tests.families.arch.families import make
from tests.families.arch.test_families import compare

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("transformers")

IDS = torch.tensor([[5, 17, 3, 44, 9, 21, 80, 7, 8, 11]])

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("mixtral", {"num_experts_per_tok": 1}),
    ("mixtral", {"num_experts_per_tok": 5, "hidden_act": "gelu"}),
    ("mixtral", {"sliding_window": 6, "tie_word_embeddings": True}),
    ("qwen2_moe", {"decoder_sparse_step": 2, "norm_topk_prob": True}),
    ("qwen2_moe", {"qkv_bias": False, "mlp_only_layers": []}),
    ("qwen2_moe", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}),
    ("qwen3_moe", {"norm_topk_prob": False, "mlp_only_layers": [0, 2]}),
    ("qwen3_moe", {"attention_bias": True, "decoder_sparse_step": 2}),
    ("qwen3_moe", {"head_dim": 16, "num_experts_per_tok": 3}),
    ("olmoe", {"norm_topk_prob": True}),
    ("olmoe", {"attention_bias": True, "num_key_value_heads": 4}),
    ("olmoe", {"num_experts_per_tok": 4, "tie_word_embeddings": True}),
    ("granitemoe", {"attention_bias": True}),
    ("granitemoe", {"num_experts_per_tok": 4, "tie_word_embeddings": True}),
    ("granitemoe", {"residual_multiplier": 1.0, "num_local_experts": 17}),
    ("phimoe", {"attention_bias": True, "lm_head_bias": True}),
    ("phimoe", {"router_jitter_noise": 0.2}),
    ("phimoe", {"sliding_window": 6, "num_local_experts": 2}),
    ("ernie4_5_moe", {"moe_layer_start_index": 0, "moe_layer_interval": 2}),
    ("ernie4_5_moe", {"moe_num_shared_experts": 0, "moe_layer_end_index": 2}),
    ("ernie4_5_moe", {"moe_k": 1, "tie_word_embeddings": False}),
    ("dots1", {"norm_topk_prob": True, "first_k_dense_replace": 0}),
    ("dots1", {"attention_bias": True, "n_group": 1, "topk_group": 1}),
    ("dots1", {"n_shared_experts": 1, "topk_group": 1, "num_experts_per_tok": 1}),
    ("glm4_moe", {"use_qk_norm": False, "attention_bias": True}),
    ("glm4_moe", {"norm_topk_prob": False, "routed_scaling_factor": 2.5}),
    ("glm4_moe", {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 3}),
    ("deepseek_v2", {"topk_method": "group_limited_greedy"}),
    ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 1}),
    ("deepseek_v2", {"num_experts_per_tok": 1, "first_k_dense_replace": 0}),
    ("deepseek_v2", {"routed_scaling_factor": 16.0, "n_shared_experts": 1}),
    ("deepseek_v3", {"norm_topk_prob": False, "routed_scaling_factor": 1.0}),
    ("deepseek_v3", {"n_group": 1, "topk_group": 1, "n_shared_experts": 1}),
    ("deepseek_v3", {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 3}),
    ("deepseek_v3", {"first_k_dense_replace": 4, "num_experts_per_tok": 4}),
    ("glm4_moe_lite", {"mlp_layer_types": ["sparse", "dense", "dense", "sparse"]}),
    ("glm4_moe_lite", {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
    ("hunyuan_v1_moe", {"moe_topk": 1}),
    ("hunyuan_v1_moe", {"attention_bias": True}),
    ("hunyuan_v1_moe", {"num_experts": 9, "moe_topk": 4}),
    ("gpt_oss", {"num_experts_per_tok": 1, "swiglu_limit": 0.3}),
    ("gpt_oss", {"swiglu_alpha": 1.0, "attention_bias": False}),
    ("gpt_oss", {"layer_types": ["full_attention"] * 4}),
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> asyncgen.Tokenizer:
    return asyncgen.load_tokenizer(save_tokenizer(tmp_path_factory.mktemp("text"), "byte_level"))


@pytest.mark.soak
@pytest.mark.parametrize(("family", "overrides"), VARIANTS)
def test_switches_of_experts(
    family: str, overrides: dict[str, Any], tmp_path: Path, tokenizer: asyncgen.Tokenizer
) -> None:
    compare(family, tmp_path, tokenizer, **overrides)


FEW = {"num_hidden_layers": 2}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_one_tensor_of_all_experts_is_read_as_well(family: str, tmp_path: Path) -> None:
    make(family, tmp_path, **FEW)
    expected = asyncgen.load_model(tmp_path, dtype="float32")(IDS).logits
    stored = load_file(tmp_path / "model.safetensors")
    parts: dict[str, list[tuple[int, torch.Tensor]]] = {}
    for name in [name for name in stored if ".experts." in name]:
        prefix, _, rest = name.partition(".experts.")
        number, _, kind = rest.partition(".")
        parts.setdefault(f"{prefix}.experts.{kind}", []).append((int(number), stored.pop(name)))
    stacks = {
        name: torch.stack([tensor for _, tensor in sorted(each, key=lambda one: one[0])])
        for name, each in parts.items()
    }
    gate, up, down = (
        ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    )
    for name, tensor in stacks.items():
        prefix, kind = name.removesuffix(".weight").rsplit(".", 1)
        if kind == gate:
            other = stacks[f"{prefix}.{up}.weight"]
            stored[f"{prefix}.gate_up_proj"] = torch.cat((tensor, other), 1)
        elif kind == down:
            stored[f"{prefix}.down_proj"] = tensor
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = asyncgen.load_model(tmp_path, dtype="float32")
    assert torch.equal(model(IDS).logits, expected)
    model.save_pretrained(tmp_path / "again")
    again = asyncgen.load_model(tmp_path / "again", dtype="float32")
    assert torch.equal(again(IDS).logits, expected)


@pytest.mark.parametrize(
    "family",
    [
        "qwen2_moe",
        "granitemoe",
        "gpt_oss",
        "ernie4_5_moe",
        "dbrx",
        "llama4_text",
        "mimo_v2_flash",
        "nanochat",
    ],
)
def test_saved_tensors_equal_the_loaded_ones(family: str, tmp_path: Path) -> None:
    few = {"n_layers": 2} if family == "dbrx" else FEW
    make(family, tmp_path, **few, **({"moe_layer_start_index": 0} if "ernie" in family else {}))
    model = asyncgen.load_model(tmp_path, dtype="float32")
    model.save_pretrained(tmp_path / "again")
    stored = load_file(tmp_path / "model.safetensors")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert {*stored} == {*again}
    for name, tensor in stored.items():
        assert torch.equal(again[name], tensor), name


def test_corrections_of_scores_stay_exact(tmp_path: Path) -> None:
    make("dots1", tmp_path, **FEW)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    stored = load_file(tmp_path / "model.safetensors")
    stored[name] = torch.tensor([0.1234567, 0.1234568, 0.0, 0.1, 0.2, 0.3])
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = asyncgen.load_model(tmp_path, dtype="bfloat16")
    model.save_pretrained(tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert torch.equal(again[name], stored[name])
    assert again["model.norm.weight"].dtype == torch.bfloat16


def test_corrections_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    make("dots1", tmp_path, **FEW)
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    stored = load_file(tmp_path / "model.safetensors")
    stored[name][2] = torch.nan
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=f"`{name}` holds NaN"):
        asyncgen.load_model(tmp_path)


@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss", "llama4_text"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torchs_kernels_compute_the_same(
    family: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(family, tmp_path, **FEW)
    expected = asyncgen.load_model(tmp_path, dtype="float32")(IDS).logits
    size = float(expected.abs().max())
    near = {"float32": 1e-4, "bfloat16": 0.1 * size, "float16": 0.0125 * size}[dtype]
    ours = asyncgen.load_model(tmp_path, dtype=dtype)(IDS).logits
    torch.testing.assert_close(ours.float(), expected, atol=near, rtol=0)
    monkeypatch.setattr(native, "kernels", None)
    found = asyncgen.load_model(tmp_path, dtype=dtype)(IDS).logits
    torch.testing.assert_close(found.float(), expected, atol=near, rtol=0)


@pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")
@pytest.mark.parametrize("family", ["mixtral", "qwen2_moe"])
def test_all_blocks_are_one_call(family: str, tmp_path: Path) -> None:
    make(family, tmp_path, **FEW)
    core = asyncgen.load_model(tmp_path, dtype="float32").core
    core.prepare()
    assert core.runs_in_one_call


def test_a_width_that_no_block_has_takes_no_memory(tmp_path: Path) -> None:
    make("qwen3_moe", tmp_path, **FEW)
    expected = asyncgen.load_model(tmp_path, dtype="float32")(IDS).logits
    path = tmp_path / "config.json"
    file = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**file, "intermediate_size": 10**9}), encoding="utf-8")
    assert torch.equal(asyncgen.load_model(tmp_path, dtype="float32")(IDS).logits, expected)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("num_experts_per_tok", 6, "only 5 experts can be chosen"),
        ("num_experts_per_tok", 0, "must be a whole number of at least 1"),
        ("num_experts", 4096, "1024 at most"),
        ("mlp_only_layers", "all", "must be a list of layers"),
        ("hidden_act", "relu", "experts have one of silu"),
    ],
)
def test_impossible_config_values_are_refused_by_name(
    key: str, value: object, allowed: str, tmp_path: Path
) -> None:
    make("qwen2_moe", tmp_path, **FEW)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: value}))
    with pytest.raises(ModelLoadError, match=rf"`{key}` is .*{allowed}"):
        asyncgen.load_model(tmp_path)
