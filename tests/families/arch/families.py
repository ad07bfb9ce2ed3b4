"""A tiny checkpoint of every family, made by the reference: the table that parity is shown on."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.families.arch.registry import FAMILIES as DECLARED

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
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
_GPT2 = {
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    **dict.fromkeys(SIZES, ...),
}
_NO_GROUPS = {"num_key_value_heads": ...}
WINDOW = {"sliding_window": 6}
_EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LOCAL = {"num_local_experts": 5, "num_experts_per_tok": 2}
DBRX = {"ffn_hidden_size": 16, "moe_num_experts": 5, "moe_top_k": 2}
_GROUPED = {
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "n_group": 3,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
}
_LATENT = {
    "kv_lora_rank": 20,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
}

_STRETCHED = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}

_STATES = {
    **dict.fromkeys(SIZES, ...),
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "state_size": 6,
}
STATES: dict[str, dict[str, Any]] = {
    "falcon_mamba": _STATES,
    "mamba": {**_STATES, "time_step_rank": 3},
    "mamba2": {**_STATES, "num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 12},
}
"""Families whose layers keep states: what needs keys and values they refuse."""

_DELTA = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
}
_MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 6}
HYBRIDS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1], **_MAMBA_2},
    "falcon_h1": {
        "head_dim": 8,
        "mamba_d_ssm": 64,
        "attention_in_multiplier": 0.9,
        "attention_out_multiplier": 0.8,
        "key_multiplier": 0.7,
        "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.6,
        "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9],
        "mlp_multipliers": [0.7, 1.3],
        "embedding_multiplier": 2.0,
        "lm_head_multiplier": 0.5,
        **_MAMBA_2,
    },
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention", "mamba", "mamba"],
        "shared_intermediate_size": 24,
        **_LOCAL,
        **_MAMBA_2,
    },
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 4,
        "mamba_d_state": 6,
        "mamba_dt_rank": 3,
        "max_position_embeddings": ...,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv", "conv"], "block_multiple_of": 8},
    "lfm2_moe": {
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
        "num_dense_layers": 1,
        **_EXPERTS,
    },
    "lfm3": {
        "head_dim": 8,
        "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
        "conv_L_cache": 5,
        **WINDOW,
    },
    "minimax": {
        "head_dim": 8,
        "full_attn_alpha_factor": 1.3,
        "linear_attn_alpha_factor": 0.8,
        "mlp_alpha_factor": 1.1,
        "mlp_beta_factor": 0.9,
        **_LOCAL,
    },
    "nemotron_h": {
        "num_hidden_layers": ...,
        "layers_block_type": ["mamba", "mlp", "attention", "moe", "mamba"],
        "head_dim": 8,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 6,
        "n_routed_experts": 5,
        "moe_intermediate_size": 16,
        "moe_shared_expert_intermediate_size": 20,
    },
    "zamba2": {
        "num_hidden_layers": 5,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid"],
        "num_key_value_heads": 4,
        "num_mem_blocks": 2,
        "use_mem_rope": True,
        "use_shared_attention_adapter": True,
        "adapter_rank": 6,
        "mamba_d_state": 6,
        "mamba_ngroups": 2,
    },
    "recurrent_gemma": {"lru_width": 40, "attention_window_size": 6},
    "kimi_linear": {
        **{**_LATENT, "q_lora_rank": None},
        **_LOCAL,
        "moe_intermediate_size": 16,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_heads": 3,
        "linear_head_dim": 10,
    },
    "olmo_hybrid": _DELTA,
    "qwen3_5_moe_text": {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 24},
    "qwen3_5_text": _DELTA,
    "qwen3_next": {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 24},
}
"""Families of which some layers attend and others keep states."""

FAMILIES: dict[str, dict[str, Any]] = {
    **HYBRIDS,
    "afmoe": {"head_dim": 8, "num_dense_layers": 1, **_EXPERTS, **WINDOW},
    "apertus": {"head_dim": 8},
    "arcee": {"head_dim": 8},
    "aria_text": {"moe_num_experts": 5, "moe_topk": 2},
    "biogpt": _NO_GROUPS,
    "bitnet": {},
    "bloom": {**_GPT2, "n_embd": ..., "n_positions": ..., "hidden_size": 32},
    "codegen": {**_GPT2, "rotary_dim": 4},
    "cohere": {},
    "cohere2": {"head_dim": 8, **WINDOW},
    "cohere2_moe": {
        "head_dim": 8,
        "num_shared_experts": 2,
        "first_k_dense_replace": 1,
        "prefix_dense_intermediate_size": 40,
        **_EXPERTS,
        **WINDOW,
    },
    "cwm": {"head_dim": 8, **WINDOW},
    "deepseek_v2": {**_LATENT, **_GROUPED, "routed_scaling_factor": 1.5},
    "deepseek_v3": {**_LATENT, **_GROUPED},
    "dbrx": {
        **dict.fromkeys(SIZES, ...),
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 3,
        "max_seq_len": 64,
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.5, "rope_theta": 10000.0},
        "ffn_config": DBRX,
    },
    "diffllama": {},
    "dots1": {"head_dim": 8, "routed_scaling_factor": 1.5, **_GROUPED},
    "ernie4_5": {"head_dim": 8},
    "ernie4_5_moe": {"head_dim": 8, "moe_intermediate_size": 16, "moe_num_experts": 6, "moe_k": 2},
    "exaone4": WINDOW,
    "exaone_moe": {"head_dim": 8, "num_shared_experts": 2, **_EXPERTS, **WINDOW},
    "falcon": {"num_key_value_heads": ..., "num_kv_heads": 1},
    "flex_olmo": _EXPERTS,
    "flint": {"head_dim": 8, "shared_expert_intermediate_size": 24, **_EXPERTS, **WINDOW},
    "gemma": {"head_dim": 12},
    "gemma2": {"head_dim": 12, "query_pre_attn_scalar": 20, **WINDOW},
    "gemma3_text": {"head_dim": 12, "num_hidden_layers": 6, **WINDOW},
    "gemma3n_text": {
        "head_dim": 8,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 90,
        "laurel_rank": 4,
        "activation_sparsity_pattern": [0.95, 0.5, 0.0, 0.0, 0.0, 0.0],
        **WINDOW,
    },
    "gemma4_unified_text": {
        "head_dim": 8,
        "global_head_dim": 12,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        **WINDOW,
    },
    "gemma4_text": {
        "head_dim": 8,
        "global_head_dim": 12,
        "num_hidden_layers": 6,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 96,
        **WINDOW,
    },
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "glm4_moe": {"head_dim": 8, "use_qk_norm": True, **_GROUPED},
    "glm4_moe_lite": {**_LATENT, **_GROUPED},
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
    "gpt_oss": {"head_dim": 8, "num_local_experts": 5, "num_experts_per_tok": 2, **WINDOW},
    "gptj": {**_GPT2, "rotary_dim": 4},
    "granite": {
        "embedding_multiplier": 12.0,
        "logits_scaling": 8.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625,
    },
    "granite_swa": {
        "head_dim": 8,
        "residual_multiplier": 0.22,
        "layer_rope_theta": [0, 1e4, 5e3, 1e4],
        **WINDOW,
    },
    "granitemoe": {
        "embedding_multiplier": 12.0,
        "logits_scaling": 8.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625,
        **_LOCAL,
    },
    "granitemoe_swa": {
        "head_dim": 8,
        "residual_multiplier": 0.22,
        "shared_intermediate_size": 24,
        **_LOCAL,
        **WINDOW,
    },
    "granitemoeshared": {
        "embedding_multiplier": 12.0,
        "logits_scaling": 8.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625,
        "shared_intermediate_size": 24,
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
    "hy_v3": {"head_dim": 8, **_EXPERTS},
    "hyperclovax": {
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
        "attention_multiplier": 0.1,
    },
    "internlm3": {"head_dim": 8},
    "iquestcoder": {"head_dim": 8},
    "jais2": {"head_dim": 8},
    "kolibri1": {"head_dim": 8, "shared_expert_intermediate_size": 24, **_EXPERTS, **WINDOW},
    "llama": {},
    "minicpm3": {**_LATENT, "dim_model_base": 8},
    "llama4_text": {
        "head_dim": 8,
        "intermediate_size_mlp": 24,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 6,
        "floor_scale": 4,
        **_LOCAL,
    },
    "mistral4": {**_LATENT, **_GROUPED, "rope_parameters": _STRETCHED},
    "mellum": {
        "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        **_EXPERTS,
        **WINDOW,
    },
    "mimo_v2_flash": {
        "head_dim": 8,
        "v_head_dim": 4,
        "num_key_value_heads": 1,
        "n_routed_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        **WINDOW,
    },
    "minimax_m2": {"head_dim": 8, **_LOCAL},
    "ministral": {
        "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        **WINDOW,
    },
    "ministral3": {"head_dim": 8, "rope_parameters": _STRETCHED},
    "mistral": {"head_dim": 8, **WINDOW},
    "mixtral": _LOCAL,
    "mpt": {
        **_GPT2,
        **dict.fromkeys(("n_embd", "n_layer", "n_head", "n_positions"), ...),
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 3,
    },
    "nanochat": {},
    "nemotron": {"head_dim": 8},
    "olmo": {},
    "olmo2": {},
    "olmo3": WINDOW,
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
    "solar_open": {"head_dim": 8, **_GROUPED, "first_k_dense_replace": ...},
    "stablelm": {},
    "starcoder2": {},
    "vaultgemma": {"head_dim": 12, "query_pre_attn_scalar": 20, **WINDOW},
    "xglm": {
        **_GPT2,
        **dict.fromkeys(("n_embd", "n_layer", "n_head", "n_positions"), ...),
        "d_model": 32,
        "num_layers": 3,
        "attention_heads": 4,
        "ffn_dim": 48,
    },
    # With a filler the reference reads its row of the table as zeros.
    "youtu": {**_LATENT, "pad_token_id": ...},
}
"""What sets the tiny configuration of each family apart from `COMMON`; ``...`` leaves a key out."""


def make(family: str, folder: Path, seed: int = 0, **overrides: Any) -> Any:
    """Save a checkpoint of a family with random weights; return the reference's model."""
    import transformers

    given = {**COMMON, **{**FAMILIES, **STATES}[family], **overrides}
    # A copy: configurations of the reference write to what they are given.
    settings = deepcopy({key: value for key, value in given.items() if value is not ...})
    config = transformers.AutoConfig.for_model(family, **settings)
    # Some types have no class of their own; one has no entry in the table of causal models.
    kind = getattr(transformers, DECLARED[family].class_name, None)
    make_from = kind or transformers.AutoModelForCausalLM.from_config
    model = make_from(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            # Norms stay around what they are made with: one, or nothing where one is added.
            is_factor = parameter.dim() == 1 and name.endswith("weight")
            parameter.copy_(parameter + 0.1 * noise if is_factor else 0.15 * noise)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.fill_(0.5 + torch.rand((), generator=generator).item())
            elif "correction" in name or name.endswith(
                "expert_bias"
            ):  # large enough to change which experts are chosen
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator) - 0.5)
    model.save_pretrained(folder)
    return model
