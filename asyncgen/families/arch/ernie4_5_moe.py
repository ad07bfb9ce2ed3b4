"""ERNIE 4.5 with experts: a softmax, corrected for the choice; adjacent features rotate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.config_values import MOST_LAYERS
from asyncgen.families.plans.declaration import Family
from asyncgen.families.plans.expert_values import EXPERT_NAMES, experts_plan, shared_width

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues
    from asyncgen.families.plans.experts_plan import ExpertsPlan


def _experts(values: ConfigValues, layer: int) -> ExpertsPlan | None:
    ends = []
    for key in ("moe_layer_start_index", "moe_layer_end_index"):
        value = values.value(key)
        if type(value) is not int or not -1 <= value <= MOST_LAYERS:
            raise values.bad(key, value, "must be the number of a layer, or -1 for the last")
        ends.append(value if value >= 0 else values.count("num_hidden_layers") - 1)
    is_counted = (layer + 1) % values.count("moe_layer_interval") == 0
    if not (ends[0] <= layer <= ends[1] and is_counted):
        return None
    return experts_plan(
        values,
        is_normalised=True,
        is_corrected=True,
        has_row_of_corrections=True,
        shared_width=shared_width("moe_num_shared_experts"),
    )


FAMILY = Family(
    "ernie4_5_moe",
    "Ernie4_5_MoeForCausalLM",
    names={**EXPERT_NAMES, "correction": "mlp.moe_statics.e_score_correction_bias"},
    defaults={
        "vocab_size": 103424,
        "hidden_size": 2560,
        "intermediate_size": 12288,
        "num_hidden_layers": 28,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "moe_intermediate_size": 1536,
        "num_experts": 64,
        "num_experts_per_tok": 6,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
    },
    spellings={"num_experts": "moe_num_experts", "num_experts_per_tok": "moe_k"},
    # Weights are divided by their sum, which is never less.
    only={"use_bias": False, "moe_norm_min": 1e-12},
    is_interleaved=True,
    has_qkv_bias=False,
    experts=_experts,
)
