"""Families in GGUF: the same logits as of the checkpoints that the files were made of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import asyncgen
from asyncgen.checkpoints.gguf.architectures import ARCHITECTURES as KNOWN
from asyncgen.checkpoints.gguf.tensor_types import TENSOR_TYPES
from asyncgen.errors import ModelLoadError, UnsupportedModelError
from tests.checkpoints.gguf.making import ARCHITECTURES, read_folder, write_gguf
from tests.checkpoints.gguf.making_hybrids import ARCHITECTURES as HYBRIDS
from tests.doubles.models import byte_tokenizer
from tests.families.arch.families import make

PLAIN = (
    "llama",
    "qwen2",
    "qwen3_moe",
    "gemma3_text",
    "phi3",
    "gpt_oss",
    "gpt2",
    "nemotron",
    "falcon_h1",
    "gemma3n_text",
    "llama4_text",
)
OVERRIDES: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 12},  # llama.cpp divides by the size of a head
    "gemma3_text": {"query_pre_attn_scalar": 12},
    "hunyuan_v1_dense": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    # Files do not say these, and llama.cpp takes what the models have.
    "afmoe": {"mup_enabled": True},
    "llama4_text": {"attention_chunk_size": 8192, "floor_scale": 8192},
    "minicpm3": {"dim_model_base": 256, "v_head_dim": 8},
    "kimi_linear": {"linear_num_heads": 4},  # of both kinds of layers
    # Experts have an architecture of their own there.
    "nemotron_h": {"layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba"]},
}
SWITCHED: dict[str, dict[str, Any]] = {
    "llama": {
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "max_position_embeddings": 16384,
    },
    "phi3": {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 2.2, 2.4, 2.6],
        },
        "original_max_position_embeddings": 48,
    },
    "qwen2": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    "cohere": {"use_qk_norm": True},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 4},
    "granitemoehybrid": {"num_local_experts": 0, "position_embedding_type": "rope"},
    "jamba": {"num_experts": 1},
    "deepseek_v2": {"q_lora_rank": None, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 0.7,
            "mscale_all_dim": 0.7,
        }
    },
    "mamba2": {"use_bias": True, "n_groups": 1},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"],
        "moe_latent_size": 12,
        "routed_scaling_factor": 2.5,
        "n_routed_experts": 6,
        "n_group": 3,
        "topk_group": 2,
    },
    "gemma4_text": {
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "enable_moe_block": True,
        "num_experts": 5,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
        "final_logit_softcapping": 1.5,
    },
    "falcon_h1": {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
    "stablelm": {"use_qkv_bias": True, "tie_word_embeddings": True},
}
"""Switches beside those of the tiny checkpoints."""

READ_AS = {
    "glm4_moe_lite": "deepseek_v3",
    "internlm3": "llama",
    "iquestcoder": "llama",
    "solar_open": "glm4_moe",
}
"""Families that are another one in a file, which computes the same."""

IDS = torch.arange(1, 41).view(2, 20) % 90 + 3


def families() -> list[Any]:
    marks = {name: () if name in PLAIN else (pytest.mark.soak,) for name in ARCHITECTURES}
    return [pytest.param(name, marks=marks[name]) for name in ARCHITECTURES]


def is_large(name: str) -> bool:
    return name in HYBRIDS or name.startswith("deepseek")


def switched() -> list[Any]:
    return [
        pytest.param(name, marks=(pytest.mark.soak,) if is_large(name) else ()) for name in SWITCHED
    ]


def converted(folder: Path, family: str, **overrides: Any) -> tuple[Any, Path]:
    theirs = make(family, folder / "hf", **{**OVERRIDES.get(family, {}), **overrides})
    _, metadata, tensors = read_folder(folder / "hf")
    return theirs, write_gguf(folder / "model.gguf", metadata, tensors)


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=IDS, use_cache=False, return_dict=True).logits
    return found


@pytest.mark.parametrize("family", families())
def test_logits_are_those_of_the_checkpoint(family: str, tmp_path: Path) -> None:
    theirs, file = converted(tmp_path, family)
    ours = asyncgen.load_model(file, dtype="float32")
    assert ours.config.model_type == READ_AS.get(family, family)
    torch.testing.assert_close(logits(ours), logits(theirs), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", switched())
def test_switches_are_read(family: str, tmp_path: Path) -> None:
    theirs, file = converted(tmp_path, family, **SWITCHED[family])
    ours = asyncgen.load_model(file, dtype="float32")
    torch.testing.assert_close(logits(ours), logits(theirs), atol=1e-4, rtol=0)


def test_embedding_gemma_sees_both_directions(tmp_path: Path) -> None:
    given = {"use_bidirectional_attention": True, "query_pre_attn_scalar": 12}
    theirs, ids = make("gemma3_text", tmp_path / "hf", **given).base_model, IDS[:, :12]
    _, metadata, tensors = read_folder(tmp_path / "hf")
    metadata["gemma-embedding.pooling_type"] = 1
    generator = np.random.default_rng(0)
    for name, shape in (("dense_2", (24, 32)), ("dense_3", (32, 24))):
        tensors[f"{name}.weight"] = generator.standard_normal(shape, np.float32)
    file = write_gguf(tmp_path / "model.gguf", metadata, tensors)
    ours = asyncgen.load_model(file, dtype="float32")
    with torch.no_grad():
        expected = theirs(ids).last_hidden_state
    states = ours(ids, output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(states, expected, atol=1e-4, rtol=0)
    with asyncgen.LLM(file, tokenizer=byte_tokenizer(), dtype="float32") as llm:
        found = llm.embed(ids[0].tolist(), normalize=False).vector
    wanted = expected[0].mean(0)
    for name in ("dense_2", "dense_3"):
        wanted = torch.from_numpy(tensors[f"{name}.weight"]) @ wanted
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-4)
    tensors["dense_3.weight"] = tensors["dense_3.weight"].T.copy()
    with pytest.raises(ModelLoadError, match=r"dense_3\.weight is \[24, 32\]"):
        asyncgen.load_model(write_gguf(tmp_path / "bad.gguf", metadata, tensors))


def test_loaded_gguf_is_saved_in_the_layout_of_its_family(tmp_path: Path) -> None:
    import transformers

    theirs, file = converted(tmp_path, "gemma3_text")
    asyncgen.load_model(file, dtype="float32").save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(logits(again), logits(theirs), atol=1e-5, rtol=0)


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "x.gguf", {"general.architecture": "rwkv6"}, {})
    with pytest.raises(UnsupportedModelError, match="rwkv6.*llama"):
        asyncgen.load_model(file)


def test_a_bamba_is_no_granite(tmp_path: Path) -> None:
    make("granitemoehybrid", tmp_path)
    _, metadata, tensors = read_folder(tmp_path)
    del metadata["granitehybrid.attention.scale"]
    with pytest.raises(UnsupportedModelError, match="Bamba"):
        asyncgen.load_model(write_gguf(tmp_path / "x.gguf", metadata, tensors))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    make("llama", tmp_path)
    _, metadata, tensors = read_folder(tmp_path)
    del tensors["blk.1.ffn_up.weight"]
    file = write_gguf(tmp_path / "x.gguf", metadata, tensors)
    with pytest.raises(ModelLoadError, match=r"1 missing: blk\.1\.ffn_up\.weight"):
        asyncgen.load_model(file)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
def test_packed_weights_are_their_numbers(kind: str, tmp_path: Path) -> None:
    """The model of a file is the one of its numbers, whatever they are stored as."""
    make("llama", tmp_path, hidden_size=64, intermediate_size=96, num_attention_heads=4)
    _, metadata, tensors = read_folder(tmp_path)
    number = gguf.GGMLQuantizationType[kind]
    packed, wide, kinds = dict(tensors), dict(tensors), {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            packed[name] = gguf.quants.quantize(tensor, number)
            wide[name] = gguf.quants.dequantize(packed[name], number)
            kinds[name] = number
    one = asyncgen.load_model(
        write_gguf(tmp_path / "packed.gguf", metadata, packed, kinds), dtype="float32"
    )
    other = asyncgen.load_model(write_gguf(tmp_path / "wide.gguf", metadata, wide), dtype="float32")
    # Where a kernel multiplies by packed weights, what they are multiplied by is rounded.
    error = 1e-5 if kind.endswith("F16") else 5e-3
    torch.testing.assert_close(logits(one), logits(other), atol=error, rtol=0)
    stored = other.state_dict()
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, stored[name]), name
    stated = {"F16": torch.float16, "BF16": torch.bfloat16}.get(kind, torch.bfloat16)
    assert asyncgen.load_model(tmp_path / "packed.gguf").dtype == stated


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_packed_inputs_in_another_order_are_their_numbers(kind: str, tmp_path: Path) -> None:
    """Behind the gated delta rule a file has columns as its heads lie."""
    sizes = {"linear_num_value_heads": 8, "linear_value_head_dim": 8, "hidden_size": 32}
    make("qwen3_5_text", tmp_path / "hf", **sizes)
    _, metadata, tensors = read_folder(tmp_path / "hf")
    number = gguf.GGMLQuantizationType[kind]
    packed, kinds = dict(tensors), {}
    for name in tensors:
        if name.endswith("ssm_out.weight"):
            packed[name] = gguf.quants.quantize(tensors[name], number)
            kinds[name] = number
    file = write_gguf(tmp_path / "packed.gguf", metadata, packed, kinds)
    ours = asyncgen.load_model(file, dtype="float32")
    wide = {**tensors, **{name: gguf.quants.dequantize(packed[name], number) for name in kinds}}
    other = asyncgen.load_model(write_gguf(tmp_path / "wide.gguf", metadata, wide), dtype="float32")
    torch.testing.assert_close(logits(ours), logits(other), atol=5e-3, rtol=0)
    stored = other.state_dict()
    for name, weight in ours.state_dict().items():
        assert torch.equal(weight, stored[name]), name


@pytest.mark.soak
@pytest.mark.parametrize("family", ["gemma4_text", "mixtral"])
def test_experts_may_have_gates_beside_what_they_let_through(family: str, tmp_path: Path) -> None:
    more = SWITCHED[family] if family in SWITCHED else {}
    theirs = make(family, tmp_path / "hf", **more)
    _, metadata, tensors = read_folder(tmp_path / "hf")
    gates, ups, both = (f"ffn_{part}_exps.weight" for part in ("gate", "up", "gate_up"))
    changed = dict(tensors)
    for name in tensors:
        layer = name.rpartition("ffn_")[0]
        if name.endswith(both):  # one tensor of both becomes two
            gate, up = np.split(changed.pop(name), 2, axis=1)
            changed |= {layer + gates: gate, layer + ups: up}
        elif name.endswith(gates):
            changed[layer + both] = np.concatenate(
                (changed.pop(name), changed.pop(layer + ups)), axis=1
            )
    file = write_gguf(tmp_path / "other.gguf", metadata, changed)
    ours = asyncgen.load_model(file, dtype="float32")
    torch.testing.assert_close(logits(ours), logits(theirs), atol=1e-4, rtol=0)


@pytest.mark.soak
def test_early_files_of_qwen3_next_have_one_matrix_for_four(tmp_path: Path) -> None:
    theirs = make("qwen3_next", tmp_path / "hf")
    _, metadata, tensors = read_folder(tmp_path / "hf")
    (file,) = (tmp_path / "hf").glob("*.safetensors")
    for name, weight in load_file(file).items():
        if name.endswith("in_proj_qkvz.weight"):
            layer = f"blk.{name.split('.')[2]}"
            for part in ("attn_qkv", "attn_gate"):
                del tensors[f"{layer}.{part}.weight"]
            tensors[f"{layer}.ssm_in.weight"] = weight.float().numpy()
    early = write_gguf(tmp_path / "early.gguf", metadata, tensors)
    ours = asyncgen.load_model(early, dtype="float32")
    torch.testing.assert_close(logits(ours), logits(theirs), atol=1e-4, rtol=0)


@pytest.mark.soak
def test_early_files_of_deepseek_have_one_matrix_for_keys_and_values(tmp_path: Path) -> None:
    theirs = make("deepseek_v2", tmp_path / "hf")
    _, metadata, tensors = read_folder(tmp_path / "hf")
    (file,) = (tmp_path / "hf").glob("*.safetensors")
    for name, weight in load_file(file).items():
        if name.endswith("kv_b_proj.weight"):
            layer = f"blk.{name.split('.')[2]}"
            for part in ("attn_k_b", "attn_v_b"):
                del tensors[f"{layer}.{part}.weight"]
            tensors[f"{layer}.attn_kv_b.weight"] = weight.float().numpy()
    for key in ("key_length", "value_length"):
        value = metadata.pop(f"deepseek2.attention.{key}_mla")
        metadata[f"deepseek2.attention.{key}"] = value
    metadata["deepseek2.attention.head_count_kv"] = metadata["deepseek2.attention.head_count"]
    early = write_gguf(tmp_path / "early.gguf", metadata, tensors)
    ours = asyncgen.load_model(early, dtype="float32")
    torch.testing.assert_close(logits(ours), logits(theirs), atol=1e-4, rtol=0)


def test_the_page_names_every_architecture_and_type() -> None:
    page = (Path(asyncgen.__file__).parent / "docs" / "formats.md").read_text(encoding="utf-8")
    listed = page.partition("## Architectures")[2].partition("Other architectures")[0]
    assert set(re.findall(r"`([a-z0-9_-]+)`", listed)) == set(KNOWN)
    table = page.partition("## Types")[2].partition("All of these")[0]
    packed = {kind.name for kind in TENSOR_TYPES.values() if kind.plain is None}
    assert packed <= set(re.findall(r"[A-Z]+\d[A-Z0-9_]*", table))
