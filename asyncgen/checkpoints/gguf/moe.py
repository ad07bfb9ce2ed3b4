"""Declare further llama.cpp architectures with mixtures of experts. Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.gguf.declaration import BIASES, CHOSEN, SIGMOID, Architecture, layers_of
from asyncgen.checkpoints.gguf.hybrid import by_layer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.checkpoints.gguf.gguf_file import GgufModel

_LISTED: Final[Mapping[str, str]] = {
    **CHOSEN,
    "attention.sliding_window": "sliding_window",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
}

_WITHOUT_NORMS: Final = 128
"""Experts of the only Llama 4 without normalised heads, which no file shows."""
_KV: Final = "attention.head_count_kv"
_PATTERN: Final = "attention.sliding_window_pattern"


def _llama4(model: GgufModel) -> Mapping[str, Any]:
    """A window of 0 means full attention with RoPE in all layers, as in models without experts."""
    own = model.own
    experts = own.whole("expert_count") or 0
    found: dict[str, Any] = {"use_qk_norm": experts != _WITHOUT_NORMS}
    if not experts:
        found["moe_layers"] = []
    if own.whole("attention.sliding_window") == 0:
        layers = len(by_layer(model, _KV))
        found |= {"attention_chunk_size": None, "attn_temperature_tuning": False}
        found |= {"layer_types": ["full_attention"] * layers, "no_rope_layers": [1] * layers}
    return found


def _mimo(model: GgufModel) -> Mapping[str, Any]:
    """Find the sliding layers, those with experts, and the key heads of both types."""
    own = model.own
    layers = layers_of(model) or 0
    slides = [bool(one) for one in by_layer(model, _PATTERN)[:layers]]
    counts = by_layer(model, _KV)[:layers]
    full, local = (
        {int(count) for count, one in zip(counts, slides, strict=True) if one == kind}
        for kind in (False, True)
    )
    if len(full) > 1 or len(local) > 1:
        raise own.bad(_KV, "must be the same for all layers of a kind")
    return {
        "num_key_value_heads": next(iter(full or local), 0),
        "swa_num_key_value_heads": next(iter(local or full), 0),
        "hybrid_layer_pattern": [int(one) for one in slides],
        "moe_layer_freq": [
            int(f"blk.{layer}.ffn_gate_inp.weight" in model.tensors) for layer in range(layers)
        ],
    }


MIXTURES: Final[Mapping[str, Architecture]] = {
    "afmoe": Architecture(
        "afmoe",
        _LISTED,
        {"first_k_dense_replace": 0, "n_shared_experts": 0, "mup_enabled": True},
        flags=BIASES,
        gate=SIGMOID,
    ),
    "dbrx": Architecture(
        "dbrx",
        {**CHOSEN, "attention.clamp_kqv": "clip_qkv"},
        names={"post_norm": "attn_output_norm"},
    ),
    "llama4": Architecture(
        "llama4_text",
        {
            **CHOSEN,
            "feed_forward_length": "intermediate_size_mlp",
            "expert_feed_forward_length": "intermediate_size",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        # As in llama.cpp, the values of all these models.
        {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1},
        flags=BIASES,
        turns_neighbours=True,
        more=_llama4,
        gate=SIGMOID,
    ),
    "mimo2": Architecture(
        "mimo_v2_flash",
        {
            **_LISTED,
            _KV: "",
            "attention.value_length": "v_head_dim",
            "attention.value_scale": "attention_value_scale",
            "rope.freq_base_swa": "rope_local_base_freq",
        },
        flags=BIASES,
        has_parts=True,
        more=_mimo,
        needs_window=True,
        gate=SIGMOID,
    ),
    "ernie4_5-moe": Architecture(
        "ernie4_5_moe",
        {
            **CHOSEN,
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
        {**CHOSEN, "expert_feed_forward_length": "intermediate_size"},
        flags=BIASES,
    ),
    "minimax-m2": Architecture(
        "minimax_m2",
        {
            **CHOSEN,
            "expert_feed_forward_length": "intermediate_size",
            "rope.dimension_count": "rotary_dim",
        },
    ),
    "phimoe": Architecture(
        "phimoe",
        {**CHOSEN, "attention.sliding_window": "sliding_window"},
        flags={**BIASES, "lm_head_bias": "output.bias"},
    ),
}
"""Architectures by the name in ``general.architecture``."""
