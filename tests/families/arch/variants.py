"""The switches of each family's configuration, thrown on the tiny checkpoints of `FAMILIES`."""

from __future__ import annotations

from typing import Any

from tests.families.arch.families import DBRX, WINDOW

_LLAMA3 = {
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
}
_DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}
_SCOUT = {"rope_parameters": {**_LLAMA3["rope_parameters"], "high_freq_factor": 1.0}}
_BIASES = {"attention_bias": True, "mlp_bias": True}
_MIXED = {"layer_types": ["full_attention", "sliding_attention"] * 2}
_TIED = {"tie_word_embeddings": True}
_UNTIED = {"tie_word_embeddings": False}
_ONE = {"num_key_value_heads": 1}
_ALL = {"num_key_value_heads": 4}


def _turned(part: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": part, **more}}


def _longrope(pairs: int, **more: Any) -> dict[str, Any]:
    short = [1.0 + 0.1 * pair for pair in range(pairs)]
    scaling: dict[str, Any] = {"rope_type": "longrope", "short_factor": short}
    scaling |= {"long_factor": [2 * each for each in short], "rope_theta": 10000.0, **more}
    return {"rope_parameters": scaling, "original_max_position_embeddings": 48}


def _yarn(**more: Any) -> dict[str, Any]:
    stretched = {"factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
    return {"rope_parameters": {"rope_type": "yarn", **stretched, **more}}


_LATENTS: list[dict[str, Any]] = [
    {"q_lora_rank": None, "attention_bias": True},
    {"attention_bias": True, "rms_norm_eps": 1e-3, **_TIED},
    _yarn(mscale=0.7, mscale_all_dim=0.7, beta_fast=32, beta_slow=1),
    _yarn(mscale=1.0, mscale_all_dim=0.5),
    _yarn(),
    {"v_head_dim": 12, "qk_rope_head_dim": 8, "qk_nope_head_dim": 4},
    {"v_head_dim": 17},
    {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128},
]
"""Switches of latent attention."""

_MAMBA_2S: list[dict[str, Any]] = [
    {"mamba_n_groups": 1, "mamba_proj_bias": True, "attention_bias": True},
    {"mamba_n_groups": 8, "mamba_conv_bias": False, "mamba_d_conv": 2, **_TIED},
    {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 5, "rms_norm_eps": 1e-3, **_ONE},
]
"""Switches of Mamba 2 beside attention."""

_DELTAS: list[dict[str, Any]] = [
    {"linear_num_key_heads": 4, "linear_conv_kernel_dim": 2, **_turned(0.5)},
    {"linear_key_head_dim": 3, "linear_value_head_dim": 10, "attention_bias": True, **_TIED},
    {"layer_types": ["full_attention", "linear_attention"] * 2, "head_dim": 12, **_turned(1.0)},
    {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "rms_norm_eps": 1e-3, **_ONE},
]
"""Switches of mixers with the gated delta rule."""

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "bamba": [
        *_MAMBA_2S,
        {"attn_layer_indices": [0, 3], "mlp_bias": True, **_turned(1.0)},
        {"attn_layer_indices": [2], "time_step_limit": [0.3, 0.6], **_ALL},
    ],
    "falcon_h1": [
        *_MAMBA_2S,
        {"mamba_rms_norm": True, "projectors_bias": True, "mlp_bias": True},
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_n_groups": 1},
        {"mlp_multipliers": [1.0, 1.0], "mamba_d_ssm": None},
    ],
    "granitemoehybrid": [
        *_MAMBA_2S,
        {"num_local_experts": 0, "position_embedding_type": "rope"},
        {"layer_types": ["attention", "mamba"] * 2, "shared_intermediate_size": 40, **_ALL},
        {"residual_multiplier": 0.22, "logits_scaling": 8.0, "attention_multiplier": 0.1},
    ],
    "jamba": [
        {"num_experts": 1, "mamba_proj_bias": True},
        {"attn_layer_period": 3, "expert_layer_period": 1, "expert_layer_offset": 0, **_TIED},
        {"mamba_conv_bias": False, "mamba_d_conv": 2, "mamba_expand": 1, "rms_norm_eps": 1e-3},
    ],
    "kimi_linear": [
        {"linear_num_heads": 2, "linear_head_dim": 16, "attention_bias": True},
        {"q_lora_rank": 12, "linear_conv_kernel_dim": 2, "rms_norm_eps": 1e-3},
        {"num_local_experts": 6, "n_group": 3, "topk_group": 2, "norm_topk_prob": False},
        {"mlp_layer_types": ["sparse", "dense"] * 2, "n_shared_experts": 2, "v_head_dim": 17},
        {"layer_types": None, "num_hidden_layers": 5, "routed_scaling_factor": 1.0},
    ],
    "lfm2": [
        {"conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False},
        {"block_ffn_dim_multiplier": 1.4, **_UNTIED},
        {"layer_types": ["full_attention", "conv"] * 2, "conv_L_cache": 2, "norm_eps": 1e-3},
    ],
    "lfm2_moe": [
        {"conv_bias": True, "norm_topk_prob": False, "routed_scaling_factor": 2.5},
        {"use_expert_bias": False, "num_dense_layers": 0, "conv_L_cache": 4},
        {"layer_types": ["full_attention", "conv"] * 2, "norm_eps": 1e-3, **_UNTIED},
    ],
    "lfm3": [
        {"conv_bias": True, "use_attention_gate": False, "attention_bias": True, **_UNTIED},
        {"use_sandwich_norm": False, "conv_L_cache": 7, "norm_eps": 1e-3, **_ONE},
        {"layer_types": None, "num_hidden_layers": 5, "head_dim": 12},
    ],
    "minimax": [
        {"full_attn_beta_factor": 0.7, "linear_attn_beta_factor": 1.4, **_TIED},
        {"layer_types": ["linear_attention"] * 3 + ["full_attention"], "block_size": 4, **_ONE},
        {"full_attn_alpha_factor": 3.556, "linear_attn_alpha_factor": 3.556, "sliding_window": 6},
        {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 10, "rms_norm_eps": 1e-3},
    ],
    "zamba2": [
        {"use_mem_rope": False, "num_mem_blocks": 1, "mamba_ngroups": 1},
        {"add_bias_linear": True, "n_mamba_heads": 16, **_UNTIED},
        {"use_shared_attention_adapter": False, "add_bias_linear": True, **_ONE},
        {
            "num_mem_blocks": 3,
            "num_hidden_layers": 6,
            "layers_block_type": ["hybrid", "mamba", *["hybrid"] * 4],
            "n_mamba_heads": 4,
            "rms_norm_eps": 1e-3,
        },
        {"mamba_d_conv": 2, "mamba_expand": 3, "intermediate_size": None, "hidden_act": "silu"},
        {"num_mem_blocks": 5, "num_attention_heads": 8, "num_key_value_heads": 8, **_LLAMA3},
    ],
    "recurrent_gemma": [
        {"block_types": ["attention", "recurrent"], "conv1d_width": 2, "attention_bias": True},
        {"lru_width": None, "logits_soft_cap": 2.0, "rms_norm_eps": 1e-3, **_ONE},
        {"block_types": ["recurrent", "attention"], "attention_window_size": 3, **_turned(1.0)},
        {"num_hidden_layers": 5, "hidden_size": 48, "lru_width": 132, **_ALL},
    ],
    "nemotron_h": [
        {"layers_block_type": ["attention", "mlp", "mamba"], "use_bias": True, "n_groups": 1},
        {
            "layers_block_type": ["mamba", "mlp", "attention", "mlp", "mamba"],
            "use_conv_bias": False,
            "mlp_bias": True,
            "conv_kernel": 2,
        },
        {"mamba_num_heads": 4, "mlp_hidden_act": "silu", "layer_norm_epsilon": 1e-3},
        {"moe_latent_size": 24, "routed_scaling_factor": 2.5, "norm_topk_prob": False},
        {
            "layers_block_type": ["moe", "mamba", "attention", "moe"],
            "n_routed_experts": 6,
            "n_group": 3,
            "topk_group": 2,
            "intermediate_size": 99,
        },
    ],
    "afmoe": [
        {"mup_enabled": True, "attention_bias": True},
        {"global_attn_every_n_layers": 2, "num_dense_layers": 0, "route_scale": 2.5},
        {"num_shared_experts": 1, "num_experts_per_tok": 1, **_TIED},
        {"layer_types": ["full_attention"] * 4, "num_dense_layers": 3},
    ],
    "apertus": [_BIASES, {**_TIED, **_ONE}, _LLAMA3],
    "arcee": [_BIASES, {**_TIED, "hidden_act": "silu"}, _LLAMA3],
    "aria_text": [
        {"moe_topk": 1, "attention_bias": True},
        {"moe_num_shared_experts": 1, **_TIED},
        {"moe_num_experts": 9, "moe_topk": 4, **_LLAMA3},
    ],
    "biogpt": [{"scale_embedding": False}, _UNTIED, {"hidden_act": "relu"}],
    "bitnet": [{"attention_bias": True, **_ONE}, {"hidden_act": "silu", **_TIED}, _LLAMA3],
    "bloom": [{"n_head": 8}, {"n_layer": 1}, {"hidden_size": 48, "n_head": 6}, _UNTIED],
    "codegen": [{"rotary_dim": 8}, {"n_inner": 40}, {"n_embd": 64, "n_head": 8}],
    "cohere": [
        {"use_qk_norm": True},
        {"attention_bias": True, **_UNTIED},
        {"logit_scale": 2.0},
        _ONE,
    ],
    "cohere2": [_MIXED, {"attention_bias": True}, {"logit_scale": 2.0, **_UNTIED}, _ONE],
    "cohere2_moe": [
        {"expert_selection_fn": "sigmoid", "norm_topk_prob": False, "rms_norm_eps": 1e-4},
        {"expert_selection_fn": "sigmoid", "shared_expert_combination_strategy": "sum", **_MIXED},
        {"num_shared_experts": 0, "attention_bias": True, "logit_scale": 2.0, **_UNTIED},
        {
            "first_k_dense_replace": 2,
            "prefix_dense_sliding_window_pattern": 2,
            "prefix_dense_intermediate_size": None,
        },
    ],
    "cwm": [_MIXED, _ALL, {"sliding_window": 3}],
    "deepseek_v2": [*_LATENTS, _LLAMA3],
    "deepseek_v3": [*_LATENTS, {"rope_interleave": False}],
    "dbrx": [
        {"attn_config": {"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 10000.0}},
        {"ffn_config": {**DBRX, "moe_top_k": 1, "moe_normalize_expert_weights": None}},
        {"ffn_config": {**DBRX, "moe_num_experts": 3, "ffn_act_fn": {"name": "gelu"}}},
        {"n_layers": 1, "n_heads": 2},
    ],
    "diffllama": [
        {"head_dim": 12, "attention_bias": True, "rms_norm_eps": 1e-3},
        {**_ALL, **_TIED},
        {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 10, **_LLAMA3},
    ],
    "ernie4_5": [{"use_bias": True}, _UNTIED, _ONE],
    "exaone4": [{"sliding_window": None, "layer_types": ["full_attention"] * 4}, _MIXED, _LLAMA3],
    "exaone_moe": [
        {"mlp_layer_types": ["sparse", "dense", "sparse", "dense"], "num_shared_experts": 1},
        {"sliding_window_pattern": 2, "norm_topk_prob": False, "routed_scaling_factor": 1.0},
        {"num_experts": 6, "n_group": 3, "topk_group": 2, **_TIED},
        {"sliding_window": 3, "layer_types": ["sliding_attention"] * 4},
    ],
    "falcon": [
        {"alibi": True},
        {"parallel_attn": False, "bias": True},
        {"multi_query": False, "num_kv_heads": 4, "alibi": True, "parallel_attn": False},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "num_kv_heads": 2},
    ],
    "flex_olmo": [{"norm_topk_prob": True}, {"attention_bias": True, **_ONE}, _TIED],
    "flint": [
        {"mlp_only_layers": [], "norm_topk_prob": False},
        {"layer_types": ["sliding_attention"] * 4, "decoder_sparse_step": 2},
        {"attention_bias": True, "shared_expert_intermediate_size": 16, **_TIED},
    ],
    "gemma": [{"attention_bias": True}, {"head_dim": 8, **_ONE}, {"hidden_act": "gelu"}],
    "gemma2": [
        {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        _MIXED,
        {"attention_bias": True, "query_pre_attn_scalar": 4},
    ],
    "gemma3_text": [
        {"final_logit_softcapping": 1.5},
        {"layer_types": ["full_attention", "sliding_attention"] * 3},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            }
        },
        {"attention_bias": True, "query_pre_attn_scalar": 4},
    ],
    "gemma3n_text": [
        {"altup_correct_scale": False, "num_kv_shared_layers": 0, "attention_bias": True},
        {"altup_num_inputs": 2, "altup_coef_clip": 0.01, "final_logit_softcapping": 2.0},
        {"activation_sparsity_pattern": None, "num_hidden_layers": 10, "layer_types": ...},
        {"intermediate_size": [40, 48, 56, 48, 48, 40]},
    ],
    "gemma4_text": [
        {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "attention_bias": True},
        {"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "final_logit_softcapping": 1.5},
        {"use_bidirectional_attention": "vision", "head_dim": 16},
        {
            "enable_moe_block": True,
            "top_k_experts": 2,
            "num_experts": 5,
            "moe_intermediate_size": 16,
        },
        {
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.5,
                    "factor": 4.0,
                    "rope_theta": 1e5,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            }
        },
    ],
    "gemma4_unified_text": [
        {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "attention_bias": True},
        {"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "final_logit_softcapping": 1.5},
        {"head_dim": 16, "tie_word_embeddings": False},
    ],
    "glm": [{"attention_bias": False}, _turned(0.4), _turned(1.0), _TIED],
    "glm4": [{"attention_bias": False}, _turned(0.25), _ALL],
    "glm4_moe_lite": [*_LATENTS, {"rope_interleave": False, **_LLAMA3}],
    "gpt2": [
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"activation_function": "relu", **_UNTIED},
    ],
    "gpt_bigcode": [{"multi_query": False}, {"n_inner": 40}, {"activation_function": "gelu"}],
    "gpt_neo": [
        {"attention_types": [[["local"], 4]]},
        {"intermediate_size": None},
        {"window_size": 3, **_UNTIED},
    ],
    "gpt_neox": [
        {"use_parallel_residual": False},
        {"attention_bias": False},
        _turned(1.0),
        {"hidden_act": "gelu_new", **_TIED},
    ],
    "gptj": [{"rotary_dim": 8}, {"rotary_dim": 2}, {"n_inner": 40}, _TIED],
    "granite": [_BIASES, {"residual_multiplier": 1.0, **_TIED}, {"logits_scaling": 0.5}, _LLAMA3],
    "granite_swa": [
        {"layer_rope_theta": [1e4] * 4, **_BIASES},
        {"layer_types": ["full_attention"] * 4, **_UNTIED},
        {"attention_multiplier": 0.1, "embedding_multiplier": 3.0, "logits_scaling": 4.0},
    ],
    "granitemoe_swa": [
        {"shared_intermediate_size": 0, "attention_bias": True},
        {"layer_rope_theta": [1e4, 0, 5e3, 1e4]},
        {"residual_multiplier": 0.22, "logits_scaling": 4.0, **_TIED},
    ],
    "granitemoeshared": [
        {"shared_intermediate_size": 0},
        {"attention_bias": True, "residual_multiplier": 1.0},
        {"num_experts_per_tok": 4, **_TIED},
    ],
    "helium": [_BIASES, _TIED, _ONE],
    "hunyuan_v1_dense": [{"attention_bias": True, "rope_parameters": None}, _TIED, _ONE],
    "hy_v3": [
        {"num_shared_experts": 2, "router_scaling_factor": 1.0},
        {"mlp_layer_types": ["sparse"] * 4, "attention_bias": True},
        {"num_experts_per_tok": 1, **_TIED},
    ],
    "hyperclovax": [
        {"use_post_norm": False, **_BIASES},
        {"attention_multiplier": None, "embedding_multiplier": 3.0},
        {"residual_multiplier": 1.0, **_TIED},
        _LLAMA3,
    ],
    "internlm3": [_BIASES, {"head_dim": 16, **_ONE}, {**_TIED, **_DYNAMIC}],
    "iquestcoder": [_BIASES, {**_TIED, **_ONE}, _LLAMA3],
    "jais2": [{"attention_bias": False}, {"mlp_bias": False}, {"hidden_act": "gelu"}],
    "kolibri1": [
        {"norm_topk_prob": True},
        _MIXED,
        {"num_experts_per_tok": 1, "shared_expert_intermediate_size": 16, **_TIED},
    ],
    "llama": [_BIASES, _TIED, _LLAMA3, _ONE],
    "minicpm3": [
        *_LATENTS,
        {"scale_emb": 3, "scale_depth": 3.0, "dim_model_base": 16, "mlp_bias": True},
        _longrope(2),
    ],
    "llama4_text": [
        {"use_qk_norm": False, "attention_bias": True},
        {"no_rope_layers": [0, 1, 0, 1], "attn_temperature_tuning": False},
        {"moe_layers": [0, 1, 3], "num_experts_per_tok": 2, **_TIED},
        {"interleave_moe_layer_step": 1, "attention_chunk_size": 3, "floor_scale": 1},
        {"no_rope_layer_interval": 2, **_SCOUT},
    ],
    "mistral4": [
        *(each for each in _LATENTS if "rope_parameters" not in each),
        {"rope_interleave": False, "first_k_dense_replace": 0, "norm_topk_prob": False},
        {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5},
    ],
    "mellum": [
        {"layer_types": ["full_attention"] * 4, "norm_topk_prob": False},
        {"mlp_layer_types": ["dense", "sparse"] * 2, "attention_bias": True},
        {
            "rope_parameters": {
                "full_attention": {**_LLAMA3["rope_parameters"]},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
            **_TIED,
        },
    ],
    "mimo_v2_flash": [
        {"v_head_dim": 6, "num_key_value_heads": 2, "attention_bias": True},
        {"attention_value_scale": None, "mlp_layer_types": ["sparse", "dense"] * 2},
        {"layer_types": ["sliding_attention", "full_attention"] * 2, "norm_topk_prob": False},
        {
            "rope_parameters": {
                "full_attention": {"rope_theta": 5e6, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 0.7},
            },
            "n_routed_experts": 6,
            "n_group": 3,
            "topk_group": 2,
            **_TIED,
        },
    ],
    "minimax_m2": [
        {"rotary_dim": 4},
        {"num_experts_per_tok": 5, **_TIED},
        {"num_local_experts": 17, **_ONE},
        _turned(0.5),
    ],
    "ministral": [{"layer_types": ["full_attention"] * 4}, _TIED, _ALL],
    "ministral3": [
        _ONE,
        WINDOW,
        _TIED,
    ],
    "mistral": [{"sliding_window": None}, _TIED, _LLAMA3],
    "mpt": [{"n_heads": 8}, {"d_model": 48, "n_heads": 6}, {"n_layers": 1, **_UNTIED}],
    "nanochat": [
        {"final_logit_softcapping": None},
        {"attention_bias": True, **_ONE},
        {"hidden_act": "gelu", **_TIED},
    ],
    "nemotron": [_BIASES, _turned(1.0), {"hidden_act": "gelu", **_TIED}],
    "olmo": [{"attention_bias": True}, _TIED, _ONE],
    "olmo2": [{"attention_bias": True}, _TIED, _ONE, _LLAMA3],
    "olmo3": [
        _MIXED,
        {"attention_bias": True, **_ONE},
        {
            "rope_parameters": {
                "full_attention": {**_LLAMA3["rope_parameters"]},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            }
        },
    ],
    "olmo_hybrid": [
        {"linear_allow_neg_eigval": False, "linear_num_key_heads": 4, "attention_bias": True},
        {"rope_parameters": {"rope_theta": None, "rope_type": "default"}, **_TIED},
        {"layer_types": None, "num_hidden_layers": 3, "linear_conv_kernel_dim": 2, **_LLAMA3},
        {
            "linear_num_value_heads": None,
            "linear_num_key_heads": None,
            "linear_key_head_dim": None,
            "linear_value_head_dim": None,
            "rms_norm_eps": 1e-3,
        },
    ],
    "opt": [
        {"enable_bias": False},
        {"layer_norm_elementwise_affine": False},
        {"activation_function": "gelu", **_UNTIED},
    ],
    "persimmon": [{"qk_layernorm": False}, _turned(1.0), {"hidden_act": "gelu"}],
    "phi": [{"qk_layernorm": True}, _turned(1.0), _turned(0.25), _ALL, _TIED],
    "phi3": [
        WINDOW,
        _turned(0.5),
        _longrope(4, partial_rotary_factor=1.0),
        _longrope(2, partial_rotary_factor=0.5),
        _TIED,
    ],
    "qwen2": [
        {"use_sliding_window": True, "max_window_layers": 2, **WINDOW},
        _TIED,
        {"use_sliding_window": True, **_MIXED, **WINDOW},
    ],
    "qwen3": [
        {"attention_bias": True},
        _TIED,
        {"use_sliding_window": True, **_MIXED, **WINDOW},
    ],
    "qwen3_5_moe_text": _DELTAS,
    "qwen3_5_text": _DELTAS,
    "qwen3_next": [
        *_DELTAS,
        {"mlp_only_layers": [1], "norm_topk_prob": False, "decoder_sparse_step": 2},
    ],
    "seed_oss": [{"attention_bias": False}, {"attention_out_bias": True, "mlp_bias": True}, _TIED],
    "smollm3": [
        {"no_rope_layers": [1, 0, 0, 1]},
        {"no_rope_layer_interval": 2, **_BIASES},
        {"use_sliding_window": True, **WINDOW},
    ],
    "solar_open": [
        {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5},
        {"norm_topk_prob": False, "n_shared_experts": 1},
        {"attention_bias": True, **_TIED},
    ],
    "stablelm": [
        {"qk_layernorm": True},
        {"use_parallel_residual": True, "qk_layernorm": True},
        {"use_qkv_bias": True, **_TIED},
        _turned(1.0),
    ],
    "starcoder2": [{"use_bias": False}, WINDOW, _UNTIED],
    "vaultgemma": [_MIXED, {"attn_logit_softcapping": None}, {"final_logit_softcapping": None}],
    "xglm": [{"scale_embedding": False}, {"activation_function": "relu"}, _UNTIED],
    "youtu": [*_LATENTS, {"rope_interleave": False, **_UNTIED}],
}
"""Switches of each family's configuration, thrown."""
