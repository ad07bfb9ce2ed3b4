"""OLMo 2: the output of each part of a layer is normalised, and not its input."""

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
