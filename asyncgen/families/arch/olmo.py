"""OLMo 1: norms by mean and variance that have no weights."""

from __future__ import annotations

from asyncgen.families.plans.declaration import SMALL, Family
from asyncgen.families.plans.layer_plan import NormPlan

OLMO = {
    **SMALL,
    "vocab_size": 50304,
    "pad_token_id": 1,
    "bos_token_id": None,
    "eos_token_id": 50279,
    "rms_norm_eps": 1e-5,
}

FAMILY = Family(
    "olmo",
    "OlmoForCausalLM",
    defaults=OLMO,
    unread=frozenset({"rms_norm_eps"}),
    only={"clip_qkv": None},
    norm=NormPlan("layer", has_weight=False),
)
