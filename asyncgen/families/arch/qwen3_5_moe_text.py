"""Qwen 3.5's text model with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch.qwen3_5_text import FAMILY as QWEN3_5_FAMILY
from asyncgen.families.arch.qwen3_5_text import QWEN3_5
from asyncgen.families.arch.qwen3_next import SHARED
from asyncgen.families.plans.expert_values import declare_experts

if TYPE_CHECKING:
    from asyncgen.families.plans.declaration import Family

FAMILY: Family = replace(
    QWEN3_5_FAMILY,
    model_type="qwen3_5_moe_text",
    class_name="Qwen3_5MoeForCausalLM",
    defaults={
        **QWEN3_5,
        "vocab_size": 248320,
        "num_hidden_layers": 40,
        "num_experts": 256,
        "num_experts_per_tok": 8,
    },
    unread=frozenset({"intermediate_size"}),
    experts=declare_experts(**SHARED, is_normalised=True),
)
