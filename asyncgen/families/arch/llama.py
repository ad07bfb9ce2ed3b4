"""Llama 1 to 3 and everything that shares their layout."""

from __future__ import annotations

from asyncgen.families.plans.declaration import Family, flag

FAMILY = Family(
    "llama",
    "LlamaForCausalLM",
    ("LlamaTokenizer", "LlamaTokenizerFast"),
    has_up_bias=flag("mlp_bias"),
)
