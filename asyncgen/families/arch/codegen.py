"""CodeGen: GPT-J's layer; queries, values and keys lie in four groups."""

from __future__ import annotations

from dataclasses import replace

from asyncgen.families.arch import gptj

FAMILY = replace(
    gptj.FAMILY,
    model_type="codegen",
    class_name="CodeGenForCausalLM",
    names={**gptj.GPTJ_NAMES, "qkv": "attn.qkv_proj"},
    # Causal masks, which early checkpoints stored with every layer.
    unneeded=(r"\.attn\.causal_mask$",),
    qkv_groups=4,
    qkv_order="qvk",
)
