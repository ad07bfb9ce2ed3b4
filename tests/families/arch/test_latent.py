"""Latent attention: its formula, files as their makers write them, and refused files."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import rms_norm

import asyncgen
from asyncgen import native
from asyncgen.errors import ModelLoadError
from asyncgen.families.config import ModelConfig
from asyncgen.families.plans.layer_plan import LatentPlan
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.kernels.norm import Norm
from asyncgen.models.latent import LatentHeads
from tests.families.arch.families import make

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("transformers")

IDS = torch.tensor([[5, 17, 3, 44, 9, 21, 80, 7, 8, 11]])
FEW = {"num_hidden_layers": 2}
YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}
V2_LITE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "pretraining_tp": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": YARN,
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 102400,
}
"""The keys that DeepSeek-V2-Lite's file has."""
V3: dict[str, Any] = {
    **V2_LITE,
    "model_type": "deepseek_v3",
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_group": 4,
    "topk_method": "noaux_tc",
}
"""Those of DeepSeek-V3's."""
FLASH: dict[str, Any] = {
    **V3,
    "model_type": "glm4_moe_lite",
    "eos_token_id": [154820, 154827, 154829],
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "max_position_embeddings": 202752,
    "n_group": 1,
    "n_routed_experts": 64,
    "num_attention_heads": 20,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 47,
    "num_key_value_heads": 20,
    "partial_rotary_factor": 1.0,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "topk_group": 1,
    "v_head_dim": 256,
}
"""Those of GLM 4.7 Flash's."""


@pytest.mark.parametrize(
    ("file", "size", "dense", "temperature"),
    [(V2_LITE, 192, 1, 0.707), (V3, 192, 3, 1.0), (FLASH, 256, 1, 0.0)],
)
def test_files_as_their_makers_write_them(
    file: dict[str, Any], size: int, dense: int, temperature: float
) -> None:
    config = ModelConfig.from_hf(file)
    assert (config.head_dim, round(config.rope.partial_rotary_factor * size)) == (size, 64)
    assert [plan.experts is None for plan in config.layer_plans].index(False) == dense
    factor = 1 + 0.1 * temperature * math.log(40)  # of queries and of keys
    assert config.attention[0].scale == pytest.approx(factor**2 / math.sqrt(size))
    assert config.to_dict().get("head_dim") is None


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        (V2_LITE, "norm_topk_prob", True),
        (V2_LITE, "mlp_bias", True),
        (V2_LITE, "scoring_func", "sigmoid"),
        (V2_LITE, "topk_method", "noaux_tc"),
        (V2_LITE, "num_experts_per_tok", None),
        (V3, "moe_layer_freq", 2),
        (V3, "scoring_func", "softmax"),
        (V3, "topk_method", "greedy"),
        (V3, "n_group", 7),
        (V3, "topk_group", 9),
        (V3, "num_key_value_heads", 8),
        (V3, "qk_rope_head_dim", 63),
        (V3, "qk_nope_head_dim", 0),
        (V3, "kv_lora_rank", -1),
        (V3, "partial_rotary_factor", 0.5),
        (V3, "num_nextn_predict_layers", -1),
        (FLASH, "first_k_dense_replace", 2),
        (FLASH, "mlp_layer_types", ["dense", "sparse"]),
        (FLASH, "mlp_layer_types", ["dense"] * 46 + ["thin"]),
    ],
)
def test_unsupported_config_values_are_refused_by_name(
    file: dict[str, Any], key: str, value: object
) -> None:
    with pytest.raises(ModelLoadError, match=f"`{key}` is "):
        ModelConfig.from_hf({**file, key: value})


@pytest.mark.parametrize("key", ["kv_lora_rank", "q_lora_rank", "v_head_dim", "qk_rope_head_dim"])
def test_sizes_that_no_tensor_bears_out_are_refused_by_name(key: str, tmp_path: Path) -> None:
    make("deepseek_v3", tmp_path, **FEW)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), key: 2**30}))
    with pytest.raises(ModelLoadError, match=f"`{key}` is .* no side of a stored tensor"):
        asyncgen.load_model(tmp_path)


def test_layers_that_guess_ahead_are_left_out(tmp_path: Path) -> None:
    make("deepseek_v3", tmp_path, **FEW)
    expected = asyncgen.load_model(tmp_path, dtype="float32")(IDS).logits
    stored = load_file(tmp_path / "model.safetensors")
    last = {name: each for name, each in stored.items() if name.startswith("model.layers.1.")}
    extra = {name.replace("layers.1", "layers.2"): each.clone() for name, each in last.items()}
    extra["model.layers.2.eh_proj.weight"] = torch.zeros(32, 64)
    save_file({**stored, **extra}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(asyncgen.load_model(tmp_path, dtype="float32")(IDS).logits, expected)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "num_nextn_predict_layers": 0}))
    with pytest.raises(ModelLoadError, match=r"model\.layers\.2\."):
        asyncgen.load_model(tmp_path)


@pytest.mark.parametrize(
    ("q_lora_rank", "attention_bias"), [(12, True), (None, True), (None, False)]
)
def test_saved_tensors_equal_the_loaded_ones(
    q_lora_rank: int | None, attention_bias: bool, tmp_path: Path
) -> None:
    switches: dict[str, Any] = {"q_lora_rank": q_lora_rank, "attention_bias": attention_bias}
    make("deepseek_v2", tmp_path, **FEW, **switches)
    model = asyncgen.load_model(tmp_path, dtype="float32")
    model.save_pretrained(tmp_path / "again", max_shard_size="20KB")
    stored = load_file(tmp_path / "model.safetensors")
    parts = [load_file(part) for part in (tmp_path / "again").glob("*.safetensors")]
    again = {name: tensor for part in parts for name, tensor in part.items()}
    assert len(parts) > 1 and {*stored} == {*again}
    for name, tensor in stored.items():
        assert torch.equal(again[name], tensor), name
    folders = tmp_path, tmp_path / "again"
    files = [json.loads((folder / "config.json").read_text()) for folder in folders]
    assert files[0]["head_dim"] == files[1]["head_dim"] == 4  # they mean the part that turns


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torchs_kernels_compute_the_same(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("youtu", tmp_path, **FEW)
    expected = asyncgen.load_model(tmp_path, dtype="float32")(IDS).logits
    near = 1e-4 if dtype == "float32" else 0.1 * float(expected.abs().max())
    monkeypatch.setattr(native, "kernels", None)
    found = asyncgen.load_model(tmp_path, dtype=dtype)(IDS).logits
    torch.testing.assert_close(found.float(), expected, atol=near, rtol=0)


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize(
    "plan",
    [LatentPlan(20, 12, 4, 8, 10), LatentPlan(20, None, 4, 8, 12), LatentPlan(6, 5, 2, 2, 7)],
)
def test_heads_are_those_of_the_formula(plan: LatentPlan, tokens: int, is_native: bool) -> None:
    if is_native and not native.supports(torch.float32):
        pytest.skip("our kernels are not compiled")
    hidden, heads, key = 16, 3, plan.rope_dim + plan.nope_dim
    generator = torch.Generator().manual_seed(tokens)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    made = LatentHeads(hidden, heads, plan, bias=True, dtype=torch.float32)
    for parameter in made.parameters():
        parameter.copy_(drawn(*parameter.shape))
    weights = {name: each.clone() for name, each in made.named_parameters()}
    for module in made.modules():
        if isinstance(module, (Linear, Norm)):
            module.prepare()
    x = drawn(tokens, hidden)
    latents = x @ weights["latents.weight"].T + weights["latents.bias"]
    ranks = [plan.query_rank or 0, plan.rank, plan.rope_dim]
    asked, latent, shared = torch.split(latents, ranks, 1)
    if plan.query_rank is None:
        asked = x
    else:
        asked = rms_norm(asked, asked.shape[1:], weights["query_norm.weight"], plan.eps)
    latent = rms_norm(latent, latent.shape[1:], weights["latent_norm.weight"], plan.eps)
    # In our order: in each half of a head first what is turned, then what is not.
    queries = (asked @ weights["queries.weight"].T).view(tokens, heads, 2, key // 2)
    both = (latent @ weights["keys_values.weight"].T).view(tokens, heads, -1)
    unturned, values = torch.split(both, [plan.nope_dim, plan.values], 2)
    turned = shared.view(tokens, 1, 2, -1).expand(-1, heads, -1, -1)
    keys = torch.cat((turned, unturned.view(tokens, heads, 2, -1)), dim=3)

    heads_of = made.ready() if is_native else made
    assert is_native == (heads_of is not made)
    out = torch.full((tokens, 3 * heads * plan.head_dim), math.nan)
    assert heads_of.into(x, out) is out
    assert torch.equal(out, made.into(x, torch.empty_like(out)))
    found = out.view(tokens, 3, heads, 2, -1)
    room = key // 2
    torch.testing.assert_close(found[:, 0, :, :, :room], queries, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[:, 1, :, :, :room], keys, atol=1e-4, rtol=1e-4)
    assert not found[:, :2, :, :, room:].any()
    found_values = found[:, 2].flatten(2)
    torch.testing.assert_close(found_values[:, :, : plan.values], values, atol=1e-4, rtol=1e-4)
    assert not found_values[:, :, plan.values :].any()
