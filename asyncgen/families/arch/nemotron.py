"""Nemotron 3 and 4 and Minitron: norms by layer, stored less one; squared rectifiers."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, SMALL, Family, flag, without
from asyncgen.families.plans.layer_plan import NormPlan
from asyncgen.families.plans.rope_values import partial_rotary_factor

FAMILY = Family(
    "nemotron",
    "NemotronForCausalLM",
    names={**without(LLAMA_NAMES, "gate_up"), "up": "mlp.up_proj"},
    defaults={
        **SMALL,
        "vocab_size": 256000,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_attention_heads": 48,
        "max_position_embeddings": 4096,
        "hidden_act": "relu2",
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    spellings={"rms_norm_eps": "norm_eps"},
    unread=frozenset({"rms_norm_eps"}),
    partial_rotary_factor=partial_rotary_factor,
    norm=NormPlan("layer", has_bias=True, plus=1.0),
    has_up_bias=flag("mlp_bias"),
    is_gated=False,
)
