"""OLMo 2: what each part of a block gives is normalised, and not what it is given."""

from __future__ import annotations

from asyncgen.families.arch.olmo import OLMO
from asyncgen.families.plans.declaration import LLAMA_NAMES, Family, without
from asyncgen.families.plans.layer_plan import HeadNormPlan

OLMO2_NAMES = {
    **without(LLAMA_NAMES, "input_norm", "post_norm"),
    "output_norm": "post_attention_layernorm",
    "down_norm": "post_feedforward_layernorm",
}

FAMILY = Family(
    "olmo2",
    "Olmo2ForCausalLM",
    names=OLMO2_NAMES,
    defaults=OLMO,
    head_norm=HeadNormPlan(span="width"),
)
