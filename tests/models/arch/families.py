"""A tiny checkpoint of every family, made by the reference: the table that parity is shown on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pathlib import Path

COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_GPT2 = {
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    **dict.fromkeys(
        (
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
        ),
        ...,
    ),
}
_STATES = {
    "state_size": 6,
    **dict.fromkeys(
        (
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "max_position_embeddings",
        ),
        ...,
    ),
}
_NO_GROUPS = {"num_key_value_heads": ...}
_WINDOW = {"sliding_window": 6}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
_GROUPED = {
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 3,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "arcee": {"head_dim": 8},
    "apertus": {"head_dim": 8},
    "biogpt": _NO_GROUPS,
    "bloom": {**_GPT2, "n_embd": ..., "n_positions": ..., "hidden_size": 32},
    "codegen": {**_GPT2, "rotary_dim": 4},
    "cohere": {},
    "cohere2": {"head_dim": 8, **_WINDOW},
    "cwm": {"head_dim": 8, **_WINDOW},
    "dots1": {"head_dim": 8, "routed_scaling_factor": 1.5, **_GROUPED},
    "ernie4_5": {"head_dim": 8},
    "ernie4_5_moe": {"head_dim": 8, "moe_intermediate_size": 16, "moe_num_experts": 6, "moe_k": 2},
    "exaone4": _WINDOW,
    "falcon": {"num_key_value_heads": ..., "num_kv_heads": 1},
    "falcon_mamba": _STATES,
    "gemma": {"head_dim": 12},
    "gemma2": {"head_dim": 12, "query_pre_attn_scalar": 20, **_WINDOW},
    "gemma3_text": {"head_dim": 12, "num_hidden_layers": 6, **_WINDOW},
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "glm4_moe": {"head_dim": 8, "use_qk_norm": True, **_GROUPED},
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neo": {
        **_NO_GROUPS,
        "num_hidden_layers": ...,
        "num_attention_heads": ...,
        "num_layers": 4,
        "num_heads": 4,
        "window_size": 6,
        "attention_types": [[["global", "local"], 2]],
    },
    "gpt_neox": _NO_GROUPS,
    "gpt_oss": {"head_dim": 8, "num_local_experts": 5, "num_experts_per_tok": 2, **_WINDOW},
    "gptj": {**_GPT2, "rotary_dim": 4},
    "granite": {
        "embedding_multiplier": 12.0,
        "logits_scaling": 8.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625,
    },
    "granitemoe": {
        "embedding_multiplier": 12.0,
        "logits_scaling": 8.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625,
        **_LOCAL,
    },
    "helium": {"head_dim": 8},
    "hunyuan_v1_dense": {
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "dynamic",
            "rope_theta": 10000.0,
            "factor": 1.0,
            "alpha": 1000.0,
        },
    },
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 5, "moe_topk": 2},
    "jais2": {"head_dim": 8},
    "llama": {},
    "mamba": {**_STATES, "time_step_rank": 3},
    "mamba2": {**_STATES, "num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 12},
    "ministral": {
        "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        **_WINDOW,
    },
    "ministral3": {
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    },
    "mistral": {"head_dim": 8, **_WINDOW},
    "mixtral": _LOCAL,
    "mpt": {
        **_GPT2,
        **dict.fromkeys(("n_embd", "n_layer", "n_head", "n_positions"), ...),
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 3,
    },
    "nemotron": {"head_dim": 8},
    "olmo": {},
    "olmo2": {},
    "olmo3": _WINDOW,
    "olmoe": _EXPERTS,
    "opt": {**_NO_GROUPS, "intermediate_size": ..., "ffn_dim": 48, "word_embed_proj_dim": 32},
    "persimmon": _NO_GROUPS,
    "phi": {},
    "phi3": {},
    "phimoe": _LOCAL,
    "qwen2": {},
    "qwen2_moe": {**_EXPERTS, "shared_expert_intermediate_size": 24, "mlp_only_layers": [1]},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {**_LOCAL, "head_dim": 8, "moe_intermediate_size": 16, "norm_topk_prob": True},
    "seed_oss": {"head_dim": 8},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
    "vaultgemma": {"head_dim": 12, "query_pre_attn_scalar": 20, **_WINDOW},
    "xglm": {
        **_GPT2,
        **dict.fromkeys(("n_embd", "n_layer", "n_head", "n_positions"), ...),
        "d_model": 32,
        "num_layers": 3,
        "attention_heads": 4,
        "ffn_dim": 48,
    },
}
"""What sets the tiny configuration of each family apart from `COMMON`; ``...`` leaves a key out."""

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


VARIANTS: dict[str, list[dict[str, Any]]] = {
    "apertus": [_BIASES, {**_TIED, **_ONE}, _LLAMA3],
    "arcee": [_BIASES, {**_TIED, "hidden_act": "silu"}, _LLAMA3],
    "biogpt": [{"scale_embedding": False}, _UNTIED, {"hidden_act": "relu"}],
    "bloom": [{"n_head": 8}, {"n_layer": 1}, {"hidden_size": 48, "n_head": 6}, _UNTIED],
    "codegen": [{"rotary_dim": 8}, {"n_inner": 40}, {"n_embd": 64, "n_head": 8}],
    "cohere": [
        {"use_qk_norm": True},
        {"attention_bias": True, **_UNTIED},
        {"logit_scale": 2.0},
        _ONE,
    ],
    "cohere2": [_MIXED, {"attention_bias": True}, {"logit_scale": 2.0, **_UNTIED}, _ONE],
    "cwm": [_MIXED, _ALL, {"sliding_window": 3}],
    "ernie4_5": [{"use_bias": True}, _UNTIED, _ONE],
    "exaone4": [{"sliding_window": None, "layer_types": ["full_attention"] * 4}, _MIXED, _LLAMA3],
    "falcon": [
        {"alibi": True},
        {"parallel_attn": False, "bias": True},
        {"multi_query": False, "num_kv_heads": 4, "alibi": True, "parallel_attn": False},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1, "num_kv_heads": 2},
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
    "glm": [{"attention_bias": False}, _turned(0.25), _turned(1.0), _TIED],
    "glm4": [{"attention_bias": False}, _turned(0.25), _ALL],
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
    "gptj": [{"rotary_dim": 8}, {"rotary_dim": 2}, {"n_inner": 40}],
    "granite": [_BIASES, {"residual_multiplier": 1.0, **_TIED}, {"logits_scaling": 0.5}, _LLAMA3],
    "helium": [_BIASES, _TIED, _ONE],
    "hunyuan_v1_dense": [{"attention_bias": True, "rope_parameters": None}, _TIED, _ONE],
    "jais2": [{"attention_bias": False}, {"mlp_bias": False}, {"hidden_act": "gelu"}],
    "llama": [_BIASES, _TIED, _LLAMA3, _ONE],
    "ministral": [{"layer_types": ["full_attention"] * 4}, _TIED, _ALL],
    "ministral3": [
        _ONE,
        _WINDOW,
        _TIED,
    ],
    "mistral": [{"sliding_window": None}, _TIED, _LLAMA3],
    "mpt": [{"n_heads": 8}, {"d_model": 48, "n_heads": 6}, {"n_layers": 1, **_UNTIED}],
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
    "opt": [
        {"enable_bias": False},
        {"layer_norm_elementwise_affine": False},
        {"activation_function": "gelu", **_UNTIED},
    ],
    "persimmon": [{"qk_layernorm": False}, _turned(1.0), {"hidden_act": "gelu"}],
    "phi": [{"qk_layernorm": True}, _turned(1.0), _turned(0.25), _ALL],
    "phi3": [
        _WINDOW,
        _turned(0.5),
        _longrope(4, partial_rotary_factor=1.0),
        _longrope(2, partial_rotary_factor=0.5),
        _TIED,
    ],
    "qwen2": [
        {"use_sliding_window": True, "max_window_layers": 2, **_WINDOW},
        _TIED,
        {"use_sliding_window": True, **_MIXED, **_WINDOW},
    ],
    "qwen3": [
        {"attention_bias": True},
        _TIED,
        {"use_sliding_window": True, **_MIXED, **_WINDOW},
    ],
    "seed_oss": [{"attention_bias": False}, {"attention_out_bias": True, "mlp_bias": True}, _TIED],
    "smollm3": [
        {"no_rope_layers": [1, 0, 0, 1]},
        {"no_rope_layer_interval": 2, **_BIASES},
        {"use_sliding_window": True, **_WINDOW},
    ],
    "stablelm": [
        {"qk_layernorm": True},
        {"use_parallel_residual": True, "qk_layernorm": True},
        {"use_qkv_bias": True, **_TIED},
        _turned(1.0),
    ],
    "starcoder2": [{"use_bias": False}, _WINDOW, _UNTIED],
    "vaultgemma": [_MIXED, {"attn_logit_softcapping": None}, {"final_logit_softcapping": None}],
    "xglm": [{"scale_embedding": False}, {"activation_function": "relu"}, _UNTIED],
}
"""Switches of each family's configuration, thrown."""


def make(family: str, folder: Path, seed: int = 0, **overrides: Any) -> Any:
    """Save a checkpoint of a family with random weights; return the reference's model."""
    import transformers

    given = {**COMMON, **FAMILIES[family], **overrides}
    settings = {key: value for key, value in given.items() if value is not ...}
    config = transformers.AutoConfig.for_model(family, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            # Norms stay around what they are made with: one, or nothing where one is added.
            is_factor = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(parameter + 0.1 * noise if is_factor else 0.15 * noise)
    model.save_pretrained(folder)
    return model
