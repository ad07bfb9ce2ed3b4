"""DeepSeek V2 and its coder: latent attention; experts by softmax, of the best groups."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import deepseek_v3
from asyncgen.families.plans.expert_values import dense_before, softmax_groups_plan

FAMILY = replace(
    deepseek_v3.FAMILY,
    model_type="deepseek_v2",
    class_name="DeepseekV2ForCausalLM",
    guesses_ahead=False,
    defaults={
        "vocab_size": 102400,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "kv_lora_rank": 512,
        "q_lora_rank": 1536,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "moe_intermediate_size": 1407,
        "num_experts": 64,
        "n_shared_experts": 2,
    },
    only={
        "mlp_bias": False,
        "moe_layer_freq": 1,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
    },
    is_interleaved=True,
    experts=dense_before(softmax_groups_plan),
)
