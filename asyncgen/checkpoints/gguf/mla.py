"""Declare llama.cpp's architectures with multi-head latent attention: DeepSeek, MiniCPM 3, Kimi.

Files have the matrix from latent rows to keys and values as two tensors by head, that of keys
transposed; old files have it as one. Imports torch only to read.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.checkpoint import StoredTensor
from asyncgen.checkpoints.gguf.declaration import GROUPED, SIGMOID, Architecture, Place
from asyncgen.checkpoints.gguf.gguf_file import as_written
from asyncgen.checkpoints.gguf.hybrid import by_layer

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor

    from asyncgen.checkpoints.gguf.gguf_file import GgufModel, PackedTensor

KEYS, VALUES, BOTH = "attn_k_b.weight", "attn_v_b.weight", "attn_kv_b.weight"


def _unrotated(model: GgufModel, name: str, key: int, rotated: int) -> int:
    """Return the features of a key that are not rotated; ``name`` is the metadata of ``key``."""
    if key <= rotated:
        raise model.own.bad(name, f"must be above the {rotated} rotated features")
    return key - rotated


def _deepseek(model: GgufModel) -> Mapping[str, Any]:
    """Detect the generation, and derive sizes of heads and defaults.

    Without experts it is a Youtu model.
    """
    own = model.own

    def whole(key: str) -> int:
        return own.whole(key) or 0

    rotated = whole("rope.dimension_count")
    key = whole("attention.key_length_mla") or whole("attention.key_length")
    found: dict[str, Any] = {
        "head_dim": rotated,
        "num_key_value_heads": whole("attention.head_count"),
        "q_lora_rank": whole("attention.q_lora_rank") or None,
        "qk_nope_head_dim": _unrotated(model, "attention.key_length_mla", key, rotated),
        "v_head_dim": whole("attention.value_length_mla") or whole("attention.value_length"),
        "n_group": whole("expert_group_count") or 1,
        "topk_group": whole("expert_group_used_count") or 1,
        "norm_topk_prob": bool(own.flag("expert_weights_norm")),
    }
    if not whole("expert_count"):
        return {**found, "model_type": "youtu"}
    if whole("expert_gating_func") == SIGMOID:
        return {**found, "model_type": "deepseek_v3", "num_nextn_predict_layers": 0}
    has_groups = found["n_group"] > 1
    return {**found, "topk_method": "group_limited_greedy" if has_groups else "greedy"}


def stretched(model: GgufModel, scaling: Mapping[str, Any]) -> Mapping[str, Any]:
    """Set DeepSeek's ``mscale_all_dim``, of which a file has one tenth."""
    weight = model.own.number("rope.scaling.yarn_log_multiplier")
    if not weight:
        return scaling
    whole = as_written(10 * as_written(weight))
    return {**scaling, "mscale": whole, "mscale_all_dim": whole}


def _minicpm3(model: GgufModel) -> Mapping[str, Any]:
    """Derive sizes of heads; the default size of a value is the hidden size divided by heads."""
    own = model.own
    heads = own.whole("attention.head_count") or 1
    rotated = own.whole("rope.dimension_count") or 0
    key = own.whole("attention.key_length") or 0
    width = own.whole("embedding_length") or 0
    return {
        "head_dim": rotated,
        "num_key_value_heads": heads,
        "qk_nope_head_dim": _unrotated(model, "attention.key_length", key, rotated),
        "v_head_dim": own.whole("attention.value_length") or width // heads,
    }


_NAMES: Final[Mapping[str, str]] = {
    "latents": "attn_q_a attn_kv_a_mqa",
    "query_norm": "attn_q_a_norm",
    "queries": "attn_q_b",
    "latent_norm": "attn_kv_a_norm",
    "keys_values": "attn_kv_b",
}

MINICPM3: Final = Architecture(
    "minicpm3",
    {
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.q_lora_rank": "q_lora_rank",
        "rope.dimension_count": "qk_rope_head_dim",
    },
    # As in llama.cpp, the factors of the only model.
    {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
    names=_NAMES,
    more=_minicpm3,
)


def _kimi(model: GgufModel) -> Mapping[str, Any]:
    """Derive sizes of heads and the types of layers."""
    own = model.own
    heads = own.whole("attention.head_count")
    rotated = own.whole("rope.dimension_count") or 0
    key = own.whole("attention.key_length_mla") or 0
    kinds = by_layer(model, "attention.head_count_kv")
    return {
        "num_key_value_heads": heads,
        "linear_num_heads": heads,
        "qk_nope_head_dim": _unrotated(model, "attention.key_length_mla", key, rotated),
        "layer_types": ["full_attention" if count else "linear_attention" for count in kinds],
    }


KIMI: Final = Architecture(
    "kimi_linear",
    {
        "attention.head_count_kv": "",
        "attention.key_length": "",
        "attention.kv_lora_rank": "kv_lora_rank",
        "attention.q_lora_rank": "q_lora_rank",
        "attention.value_length_mla": "v_head_dim",
        "rope.dimension_count": "qk_rope_head_dim",
        "ssm.conv_kernel": "linear_conv_kernel_dim",
        "kda.head_dim": "linear_head_dim",
        **GROUPED,
        "expert_count": "num_experts",
    },
    {"first_k_dense_replace": 0},
    names=_NAMES,
    places={
        "attn_q.weight": Place("mixer.q_proj.weight"),
        "attn_k.weight": Place("mixer.k_proj.weight"),
        "attn_v.weight": Place("mixer.v_proj.weight"),
        "attn_output.weight": Place("mixer.o_proj.weight"),
        "ssm_conv1d_q.weight": Place("mixer.q_conv1d.weight", "window"),
        "ssm_conv1d_k.weight": Place("mixer.k_conv1d.weight", "window"),
        "ssm_conv1d_v.weight": Place("mixer.v_conv1d.weight", "window"),
        "ssm_f_a.weight": Place("mixer.f_a_proj.weight"),
        "ssm_f_b.weight": Place("mixer.f_b_proj.weight"),
        "ssm_g_a.weight": Place("mixer.g_a_proj.weight"),
        "ssm_g_b.weight": Place("mixer.g_b_proj.weight"),
        "ssm_beta.weight": Place("mixer.b_proj.weight"),
        "ssm_a": Place("mixer.A_log", "decays"),
        "ssm_dt.bias": Place("mixer.dt_bias", "flat"),
        "ssm_norm.weight": Place("mixer.o_norm.weight"),
    },
    more=_kimi,
    gate=SIGMOID,
)

DEEPSEEK: Final = Architecture(
    "deepseek_v2",
    {
        "attention.kv_lora_rank": "kv_lora_rank",
        "rope.dimension_count": "qk_rope_head_dim",
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_count": "n_shared_experts",
        "expert_weights_scale": "routed_scaling_factor",
        "leading_dense_block_count": "first_k_dense_replace",
    },
    {"first_k_dense_replace": 0, "n_shared_experts": 0},
    names=_NAMES,
    turns_neighbours=True,
    more=_deepseek,
    stretched=stretched,
)


def joined(keys: PackedTensor, values: PackedTensor) -> StoredTensor | None:
    """Join the matrices of keys and values to one, ``[heads * (nope + values), rank]``.

    Args:
        keys: ``[heads, rank, nope]``.
        values: ``[heads, values, rank]``.

    Returns:
        ``None`` if their shapes do not fit together.
    """
    if len(keys.shape) != 3 or len(values.shape) != 3:
        return None
    (heads, rank, nope), size = keys.shape, values.shape[1]
    if values.shape != (heads, size, rank):
        return None
    shape = (heads * (nope + size), rank)
    num_bytes = keys.num_bytes + values.num_bytes
    made = partial(_made, keys, values)
    return StoredTensor(values.file, "F32", shape, values.offset, num_bytes, made=made)


def _made(keys: PackedTensor, values: PackedTensor, dtype: torch.dtype) -> Tensor:
    import torch

    from asyncgen.checkpoints.gguf.read_tensors import read_as

    both = read_as(keys, dtype).transpose(1, 2), read_as(values, dtype)
    return torch.cat(both, dim=1).flatten(0, 1)
