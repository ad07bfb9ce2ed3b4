"""DeepSeek V3 and R1, Moonlight: latent attention; experts by sigmoid, of the best groups."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family, flag
from asyncgen.families.plans.expert_values import dense_before, grouped_plan
from asyncgen.families.plans.latent_values import (
    latent_kv_heads,
    latent_names,
    latent_plan,
    latent_scale,
)

FAMILY = Family(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    names=latent_names,
    guesses_ahead=True,
    defaults={
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "max_position_embeddings": 4096,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "rope_interleave": True,
        "moe_intermediate_size": 2048,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
    },
    spellings={"num_experts": "n_routed_experts"},
    only={"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    kv_heads=latent_kv_heads,
    is_interleaved=flag("rope_interleave"),
    latent=latent_plan,
    attention_scale=latent_scale,
    experts=dense_before(grouped_plan),
)
