"""Mamba 2: heads with one decay each, which groups of heads write and read alike."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import mamba
from asyncgen.families.plans.declaration import without
from asyncgen.families.plans.state_plan import dual_plan

FAMILY = replace(
    mamba.FAMILY,
    model_type="mamba2",
    class_name="Mamba2ForCausalLM",
    defaults={
        **without(mamba.MAMBA, "pad_token_id", "tie_word_embeddings"),
        "vocab_size": 32768,
        "hidden_size": 4096,
        "num_attention_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "num_hidden_layers": 64,
        "n_groups": 8,
        "time_step_limit": (0.0, float("inf")),
        "pad_token_id": 1,
        "eos_token_id": 2,
    },
    spellings={"num_attention_heads": "num_heads", "rms_norm_eps": "layer_norm_epsilon"},
    unread=frozenset(
        {
            "intermediate_size",
            "max_position_embeddings",
            "num_attention_heads",
            "num_key_value_heads",
            "rms_norm_eps",
        }
    ),
    only={"hidden_act": "silu"},
    mixer=lambda values, layer: dual_plan(values),
)
