"""CodeGen: GPT-J's layer; queries, values and keys lie in four groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.arch import gptj

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

_GROUPS = 4


def _groups(values: ConfigValues) -> int:
    heads = values.count("num_attention_heads")
    if heads % _GROUPS:
        allowed = f"must be a multiple of {_GROUPS}, in which queries, keys and values lie"
        raise values.bad("num_attention_heads", heads, allowed)
    return _GROUPS


FAMILY = replace(
    gptj.FAMILY,
    model_type="codegen",
    class_name="CodeGenForCausalLM",
    names={**gptj.GPTJ_NAMES, "qkv": "attn.qkv_proj"},
    # Causal masks, which early checkpoints stored with every layer.
    unneeded=(r"\.attn\.causal_mask$",),
    qkv_groups=_groups,
    qkv_order="qvk",
)
