"""llama.cpp's architectures with experts by a sigmoid, or by a corrected or a sparse softmax.

This module imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from asyncgen.formats.gguf.declaration import Architecture

if TYPE_CHECKING:
    from collections.abc import Mapping

_CHOSEN: Final[Mapping[str, str]] = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
}
_LISTED: Final[Mapping[str, str]] = {
    **_CHOSEN,
    "attention.sliding_window": "sliding_window",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
}
_BIASES: Final = {"attention_bias": "blk.0.attn_q.bias"}

MIXTURES: Final[Mapping[str, Architecture]] = {
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        {
            **_CHOSEN,
            "expert_feed_forward_length": "moe_intermediate_size",
            "expert_shared_count": "moe_num_shared_experts",
            "interleave_moe_layer_step": "moe_layer_interval",
            "leading_dense_block_count": "moe_layer_start_index",
        },
        {"moe_num_shared_experts": 0, "moe_layer_end_index": -1},
        turns_neighbours=True,
    ),
    "exaone-moe": Architecture(
        "exaone_moe", _LISTED, {"first_k_dense_replace": 0, "n_shared_experts": 0}
    ),
    "hunyuan-moe": Architecture(
        "hunyuan_v1_moe",
        {**_CHOSEN, "expert_feed_forward_length": "intermediate_size"},
        flags=_BIASES,
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        {
            **_CHOSEN,
            "expert_feed_forward_length": "intermediate_size",
            "rope.dimension_count": "rotary_dim",
        },
    ),
    "phimoe": Architecture(
        "phimoe",
        {**_CHOSEN, "attention.sliding_window": "sliding_window"},
        flags={**_BIASES, "lm_head_bias": "output.bias"},
    ),
}
"""By the name in ``general.architecture``."""
