"""StableLM: norms by layer; a quarter of each head rotates; layers may be parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import LAYER, LLAMA_NAMES, SMALL, Family, flag, without
from asyncgen.families.plans.layer_plan import HeadNormPlan, NormPlan
from asyncgen.families.plans.rope_values import even_rotary_factor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.families.plans.config_values import ConfigValues

_NAMES = {
    **LLAMA_NAMES,
    "q_norm": "self_attn.q_layernorm.norms.*",
    "k_norm": "self_attn.k_layernorm.norms.*",
}
_HEADS = HeadNormPlan(NormPlan("layer"), "each")


def _names(values: ConfigValues) -> Mapping[str, str]:
    return without(_NAMES, "post_norm") if values.flag("use_parallel_residual") else _NAMES


FAMILY = Family(
    "stablelm",
    "StableLmForCausalLM",
    names=_names,
    defaults={
        **SMALL,
        "vocab_size": 50304,
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
    spellings={"rms_norm_eps": "layer_norm_eps"},
    unread=frozenset({"rms_norm_eps", "head_dim"}),
    partial_rotary_factor=even_rotary_factor,
    norm=LAYER,
    head_norm=lambda values: _HEADS if values.flag("qk_layernorm") else None,
    has_qkv_bias=flag("use_qkv_bias"),
    has_output_bias=False,
    is_parallel=flag("use_parallel_residual"),
)
