"""OPT: learned positions from the third row of a table on, a plain feed-forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import Family, flag
from asyncgen.families.plans.layer_plan import NormPlan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

OPT_LAYER_NAMES = {
    "input_norm": "self_attn_layer_norm",
    "qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "output": "self_attn.out_proj",
    "post_norm": "final_layer_norm",
    "up": "fc1",
    "down": "fc2",
}


def _norm(values: ConfigValues) -> NormPlan:
    width = values.value("word_embed_proj_dim")
    if width is not None and width != values.count("hidden_size"):
        raise values.bad("word_embed_proj_dim", width, "must be the hidden_size")
    has_weights = values.flag("layer_norm_elementwise_affine")
    return NormPlan("layer", has_weights, has_weights)


FAMILY = Family(
    "opt",
    "OPTForCausalLM",
    names={
        "embed_tokens": "model.decoder.embed_tokens",
        "embed_positions": "model.decoder.embed_positions",
        "layers": "model.decoder.layers",
        "norm": "model.decoder.final_layer_norm",
        "lm_head": "lm_head",
        **OPT_LAYER_NAMES,
    },
    defaults={
        "vocab_size": 50272,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 2048,
        "hidden_act": "relu",
        "rms_norm_eps": 1e-5,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "tie_word_embeddings": True,
        "pad_token_id": 1,
        "bos_token_id": 2,
        "eos_token_id": 2,
    },
    spellings={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
    unread=frozenset({"rms_norm_eps", "num_key_value_heads", "head_dim", "hidden_act"}),
    only={"do_layer_norm_before": True, "_remove_final_layer_norm": False},
    positions="table",
    position_offset=2,
    norm=_norm,
    has_qkv_bias=flag("enable_bias"),
    has_up_bias=flag("enable_bias"),
    is_gated=False,
)
