"""Arcee's AFM: Llama's block with a plain feed-forward of squared rectifiers."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, SMALL, Family, flag, without

FAMILY = Family(
    "arcee",
    "ArceeForCausalLM",
    names={**without(LLAMA_NAMES, "gate_up"), "up": "mlp.up_proj"},
    defaults={
        **SMALL,
        "hidden_size": 2560,
        "intermediate_size": 18432,
        "max_position_embeddings": 4096,
        "hidden_act": "relu2",
        "rms_norm_eps": 1e-5,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    has_up_bias=flag("mlp_bias"),
    is_gated=False,
)
