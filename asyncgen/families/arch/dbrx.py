"""DBRX: norms by layer; joined queries, keys and values, which are clamped; experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import SMALL, Family
from asyncgen.families.plans.expert_values import experts_plan
from asyncgen.families.plans.layer_plan import NormPlan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.experts_plan import ExpertsPlan


def _experts(values: ConfigValues, layer: int) -> ExpertsPlan:
    is_normalised = values.stated("norm_topk_prob") is not None
    if is_normalised:  # the norm that weights are divided by
        values.require("norm_topk_prob", 1.0, 1)
    return experts_plan(
        values, width="intermediate_size", is_normalised=is_normalised, is_flat=True
    )


FAMILY = Family(
    "dbrx",
    "DbrxForCausalLM",
    names={
        "embed_tokens": "transformer.wte",
        "layers": "transformer.blocks",
        "norm": "transformer.norm_f",
        "lm_head": "lm_head",
        "input_norm": "norm_attn_norm.norm_1",
        "qkv": "norm_attn_norm.attn.Wqkv",
        "output": "norm_attn_norm.attn.out_proj",
        "post_norm": "norm_attn_norm.norm_2",
        "router": "ffn.router.layer",
        "experts_gate_up": "ffn.experts.mlp.w1 ffn.experts.mlp.v1",
        "experts_down": "ffn.experts.mlp.w2",
    },
    defaults={
        **SMALL,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 1,
        "intermediate_size": 3584,
        "bos_token_id": None,
        "eos_token_id": None,
        "rms_norm_eps": 1e-5,
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "norm_topk_prob": 1.0,
    },
    spellings={
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "max_position_embeddings": "max_seq_len",
        "num_key_value_heads": "attn_config.kv_n_heads",
        "rope_theta": "attn_config.rope_theta",
        "clip_qkv": "attn_config.clip_qkv",
        "intermediate_size": "ffn_config.ffn_hidden_size",
        "num_experts": "ffn_config.moe_num_experts",
        "num_experts_per_tok": "ffn_config.moe_top_k",
        "norm_topk_prob": "ffn_config.moe_normalize_expert_weights",
        "hidden_act": "ffn_config.ffn_act_fn.name",
    },
    unread=frozenset({"head_dim", "rms_norm_eps"}),
    norm=NormPlan("layer"),
    has_qkv_bias=False,
    qkv_limit=lambda values: values.positive_or_none("clip_qkv"),
    experts=_experts,
)
