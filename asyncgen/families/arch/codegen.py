"""CodeGen: GPT-J's block; queries, values and keys lie in four groups."""

from __future__ import annotations

from asyncgen.families.arch.gpt2 import GPT2_SPELLINGS, GPT2_UNREAD, four_times
from asyncgen.families.arch.gptj import GPTJ, GPTJ_NAMES, turned_features
from asyncgen.families.plans.declaration import LAYER, Family

FAMILY = Family(
    "codegen",
    "CodeGenForCausalLM",
    names={**GPTJ_NAMES, "qkv": "attn.qkv_proj"},
    # Causal masks, which early checkpoints stored with every layer.
    unneeded=(r"\.attn\.causal_mask$",),
    qkv_groups=4,
    qkv_order="qvk",
    defaults=GPTJ,
    spellings=GPT2_SPELLINGS,
    unread=GPT2_UNREAD,
    width=four_times,
    turned=turned_features,
    is_interleaved=True,
    norm=LAYER,
    has_qkv_bias=False,
    has_up_bias=True,
    is_gated=False,
    is_parallel=True,
    has_head_bias=True,
)
