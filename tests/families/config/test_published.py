"""Files as makers publish them, with keys of training and of other programs, are understood."""

from __future__ import annotations

from typing import Any

import pytest

import asyncgen
from asyncgen.families.config import ModelConfig, QueryScaling
from asyncgen.families.plans.layer_plan import HeadsPlan
from tests.cases import for_each

DBRX = {
    "model_type": "dbrx",
    "architectures": ["DbrxForCausalLM"],
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "model_type": "", "rope_theta": 500000},
    "auto_map": {"AutoConfig": "configuration_dbrx.DbrxConfig"},
    "d_model": 6144,
    "emb_pdrop": 0.0,
    "ffn_config": {
        "ffn_hidden_size": 10752,
        "model_type": "",
        "moe_jitter_eps": 0.01,
        "moe_loss_weight": 0.05,
        "moe_num_experts": 16,
        "moe_top_k": 4,
    },
    "initializer_range": 0.02,
    "max_seq_len": 32768,
    "n_heads": 48,
    "n_layers": 40,
    "output_router_logits": False,
    "resid_pdrop": 0.0,
    "router_aux_loss_coef": 0.05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 100352,
}
TRINITY = {
    "model_type": "afmoe",
    "architectures": ["AfmoeForCausalLM"],
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "global_attn_every_n_layers": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    "load_balance_coeff": 0.001,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1024,
    "mup_enabled": True,
    "n_group": 1,
    "num_attention_heads": 32,
    "num_dense_layers": 2,
    "num_expert_groups": 1,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
    "num_limited_groups": 1,
    "num_shared_experts": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000,
    "route_norm": True,
    "route_scale": 2.826,
    "score_func": "sigmoid",
    "sliding_window": 2048,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "use_cache": True,
    "use_grouped_mm": True,
    "vocab_size": 200192,
}
SCOUT = {
    "model_type": "llama4_text",
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attention_dropout": 0.0,
    "attn_scale": 0.1,
    "attn_temperature_tuning": 4,
    "bos_token_id": 200000,
    "cache_implementation": "hybrid",
    "eos_token_id": [200001, 200007, 200008],
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "initializer_range": 0.02,
    "interleave_moe_layer_step": 1,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "no_rope_layers": [],
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 16,
    "output_router_logits": False,
    "pad_token_id": 200018,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 1.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_qk_norm": True,
    "vocab_size": 202048,
}
MINIMAX = {
    "model_type": "minimax_m2",
    "architectures": ["MiniMaxM2ForCausalLM"],
    "attention_dropout": 0.0,
    "attn_type_list": [1] * 62,
    "auto_map": {"AutoConfig": "configuration_minimax_m2.MiniMaxM2Config"},
    "bos_token_id": None,
    "eos_token_id": None,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_beta": 1.0,
    "max_position_embeddings": 196608,
    "mlp_intermediate_size": 8192,
    "mtp_transformer_layers": 1,
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "num_mtp_modules": 3,
    "output_router_logits": False,
    "qk_norm_type": "per_layer",
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000,
    "rotary_dim": 64,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 0,
    "shared_moe_mode": "sigmoid",
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_mtp": True,
    "use_qk_norm": True,
    "use_routing_bias": True,
    "vocab_size": 200064,
}
_PATTERN = [0, 1, 1, 1, 1, *([0] + [1] * 5) * 7, 0]
MIMO = {
    "model_type": "mimo_v2_flash",
    "architectures": ["MiMoV2FlashForCausalLM"],
    "add_full_attention_sink_bias": False,
    "add_swa_attention_sink_bias": True,
    "attention_bias": False,
    "attention_chunk_size": 128,
    "attention_dropout": 0.0,
    "attention_value_scale": 0.707,
    "head_dim": 192,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "hybrid_block_size": None,
    "hybrid_layer_pattern": _PATTERN,
    "initializer_range": 0.02,
    "intermediate_size": 16384,
    "layernorm_epsilon": 1e-05,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": [0, *[1] * 47],
    "n_group": 1,
    "n_routed_experts": 256,
    "n_shared_experts": None,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "partial_rotary_factor": 0.334,
    "rope_theta": 5000000,
    "routed_scaling_factor": None,
    "scoring_func": "sigmoid",
    "sliding_window": 128,
    "sliding_window_size": 128,
    "swa_head_dim": 192,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_rope_theta": 10000,
    "swa_v_head_dim": 128,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 152576,
}
INTERNLM = {
    "model_type": "internlm3",
    "architectures": ["InternLM3ForCausalLM"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_internlm3.InternLM3Config"},
    "bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 10240,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "pad_token_id": 2,
    "qkv_bias": False,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 6.0, "rope_type": "dynamic"},
    "rope_theta": 50000000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128512,
}


def test_dbrx() -> None:
    config = ModelConfig.from_hf(DBRX)
    assert (config.hidden_size, config.num_key_value_heads, config.rope_theta) == (6144, 8, 5e5)
    experts = config.layer_plans[0].experts
    assert experts is not None
    assert (experts.experts, experts.width, experts.routing.chosen) == (16, 10752, 4)
    assert experts.routing.is_normalised
    assert config.layer_plans[0].qkv_limit == 8


def test_trinity() -> None:
    config = ModelConfig.from_hf(TRINITY)
    assert [plan.experts is None for plan in config.layer_plans[:3]] == [True, True, False]
    experts = config.layer_plans[2].experts
    assert experts is not None
    assert (experts.shared_width, experts.routing.scale) == (1024, 2.826)
    assert config.stream.embedding_scale == 2048**0.5
    assert [options.window for options in config.attention[:4]] == [2048, 2048, 2048, None]


def test_llama_4() -> None:
    config = ModelConfig.from_hf(SCOUT)
    assert config.layer_types[:4] == (*["chunked_attention"] * 3, "full_attention")
    assert config.attention[0].is_chunked
    assert not config.attention[3].is_chunked
    assert config.ropes is not None
    assert config.ropes[3].query_scaling == QueryScaling(0.1, 8192, 1)
    assert [plan.head_norm is None for plan in config.layer_plans[:4]] == [False] * 3 + [True]
    assert all(plan.experts is not None for plan in config.layer_plans)


def test_minimax_m2() -> None:
    config = ModelConfig.from_hf(MINIMAX)
    assert config.rope.partial_rotary_factor == 0.5
    assert config.sliding_window is None
    experts = config.layer_plans[0].experts
    assert experts is not None
    assert (experts.routing.scoring, experts.is_corrected) == ("sigmoid", True)


def test_mimo() -> None:
    config = ModelConfig.from_hf(MIMO)
    assert config.num_key_value_heads == 8
    assert config.layer_plans[0].heads == HeadsPlan(4, 128, 0.707)
    assert config.layer_plans[1].heads == HeadsPlan(8, 128, 0.707)
    assert [options.has_sinks for options in config.attention[:2]] == [False, True]
    assert config.sliding_window == 129
    assert config.ropes is not None
    assert [rope.theta for rope in config.ropes[:2]] == [5e6, 1e4]
    assert config.rope.partial_rotary_factor == 64 / 192
    assert ModelConfig.from_hf(config.to_dict()) == config


@pytest.mark.parametrize(("turned", "size"), [(30, 44), (64, 192), (8, 8)])
def test_a_part_of_a_head_is_of_whole_features(turned: int, size: int) -> None:
    file = {"model_type": "minimax_m2", "head_dim": size, "rotary_dim": turned}
    assert round(ModelConfig.from_hf(file).rope.partial_rotary_factor * size) == turned
    part = (turned + 0.9) / size if turned < size else 1.0
    file = {"model_type": "minimax_m2", "head_dim": size, "partial_rotary_factor": part}
    assert round(ModelConfig.from_hf(file).rope.partial_rotary_factor * size) == turned


def test_internlm_3() -> None:
    config = ModelConfig.from_hf(INTERNLM)
    assert (config.rope.rope_type, config.rope.factor, config.rope_theta) == ("dynamic", 6.0, 5e7)
    assert not config.attention_bias


@for_each(
    ("file", "keys", "said"),
    [
        (DBRX, {"ffn_config": {"moe_normalize_expert_weights": 2.0}}, "moe_normalize_expert"),
        (DBRX, {"ffn_config": {"moe_top_k": 0}}, "`ffn_config.moe_top_k` is 0"),
        (DBRX, {"ffn_config": {"ffn_act_fn": {"name": "sin"}}}, "`ffn_config.ffn_act_fn.name`"),
        (DBRX, {"attn_config": 3}, "`attn_config` is 3: must be an object"),
        (DBRX, {"attn_config": {"clip_qkv": -1}}, "`attn_config.clip_qkv` is -1"),
        (TRINITY, {"score_func": "softmax"}, "`score_func` is 'softmax'"),
        (TRINITY, {"route_norm": False}, "`route_norm` is False"),
        (SCOUT, {"moe_layers": 3}, "`moe_layers` is 3"),
        (SCOUT, {"no_rope_layers": [1]}, "`no_rope_layers`"),
        (SCOUT, {"floor_scale": 0}, "`floor_scale` is 0"),
        (SCOUT, {"attention_chunk_size": None, "layer_types": ["chunked_attention"] * 48}, "slid"),
        (MINIMAX, {"rotary_dim": 130}, "`rotary_dim` is 130"),
        (MINIMAX, {"qk_norm_type": "per_head"}, "`qk_norm_type`"),
        (MINIMAX, {"shared_intermediate_size": 8}, "`shared_intermediate_size` is 8"),
        (MIMO, {"v_head_dim": 256, "swa_v_head_dim": 256}, "`v_head_dim` is 256"),
        (MIMO, {"swa_head_dim": 128}, "`swa_head_dim` is 128"),
        (MIMO, {"swa_num_key_value_heads": 6}, "`swa_num_key_value_heads` is 6"),
        (MIMO, {"moe_layer_freq": [2] * 48}, "`moe_layer_freq`"),
        (MIMO, {"add_full_attention_sink_bias": True}, "`add_full_attention_sink_bias`"),
        ({"model_type": "hy_v3"}, {"norm_topk_prob": False}, "`norm_topk_prob` is False"),
        ({"model_type": "hy_v3"}, {"qk_norm": False}, "`qk_norm` is False"),
        ({"model_type": "solar_open"}, {"scoring_func": "softmax"}, "`scoring_func` is 'softmax'"),
        ({"model_type": "solar_open"}, {"topk_method": "greedy"}, "`topk_method` is 'greedy'"),
    ],
)
def test_unsupported_keys_that_change_results_are_refused(
    file: dict[str, Any], keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(asyncgen.ModelLoadError) as caught:
        ModelConfig.from_hf({**file, **keys})
    assert said in str(caught.value)
