"""Declare llama.cpp's architectures of Gemma 3n and 4, and of EmbeddingGemma.

Imports torch only to read tensors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.gguf.declaration import EXPERTS, Architecture
from asyncgen.checkpoints.gguf.gguf_file import as_written
from asyncgen.checkpoints.gguf.hybrid import by_layer
from asyncgen.errors import ModelLoadError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from asyncgen.checkpoints.gguf.gguf_file import GgufModel

_FULL, _SLIDING = "full_attention", "sliding_attention"
_FEED: Final = "feed_forward_length"
_KV: Final = "attention.head_count_kv"
_SHARED: Final = "attention.shared_kv_layers"
_ROPE: Final = "rope_freqs.weight"
_NEVER: Final = 1e9
"""Least divisor of the frequency of a pair that is not rotated."""
_OWN_KEYS: Final = 20
"""Layers of Gemma 3n with separate keys and values, if a file has no number."""

_SLIDES: Final[Mapping[str, str]] = {
    "attention.sliding_window": "sliding_window",
    "final_logit_softcapping": "final_logit_softcapping",
}
_ROWS: Final[Mapping[str, str]] = {
    **_SLIDES,
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    _SHARED: "num_kv_shared_layers",
}
_ROW_NAMES: Final[Mapping[str, str]] = {
    "input_gate": "inp_gate",
    "input_up": "proj",
    "taken_norm": "post_norm",
    "input_table": "per_layer_token_embd",
    "input_projection": "per_layer_model_proj",
    "input_row_norm": "per_layer_proj_norm",
}
"""Names of the inputs of layers for each token beside the hidden state."""


def _local_theta(model: GgufModel) -> float:
    return model.own.number("rope.freq_base_swa") or 10_000.0


def _side(model: GgufModel, name: str) -> int:
    """Return the rows of a tensor; 0: there is none."""
    tensor = model.tensors.get(name)
    return tensor.shape[0] if tensor is not None else 0


def _embedding(model: GgufModel) -> Mapping[str, Any]:
    """EmbeddingGemma is Gemma 3 with bidirectional attention."""
    return {
        "use_bidirectional_attention": True,
        "query_pre_attn_scalar": model.own.whole("attention.key_length"),
        "rope_local_base_freq": _local_theta(model),
    }


def _sparsity(model: GgufModel) -> Sequence[float] | None:
    """Translate thresholds of gates, in deviations from the mean, to shares of gates."""
    key = "activation_sparsity_scale"
    scales = model.own.numbers(key)
    if scales is None:
        return None
    if any(math.isnan(scale) or scale == math.inf for scale in scales):
        raise model.own.bad(key, "must be numbers, or below all of them")
    return [as_written((1 + math.erf(scale / math.sqrt(2))) / 2) for scale in scales]


def _gemma3n(model: GgufModel) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        "rope_local_base_freq": _local_theta(model),
        "laurel_rank": _side(model, "blk.0.laurel_l.weight"),
        "vocab_size_per_layer_input": _side(model, "per_layer_token_embd.weight"),
    }
    sparsity = _sparsity(model)
    if sparsity is not None:
        found["activation_sparsity_pattern"] = sparsity
    if model.own.whole(_SHARED) is None:
        layers = model.own.whole("block_count") or 0
        found["num_kv_shared_layers"] = max(0, layers - _OWN_KEYS)
    return found


def _kinds(model: GgufModel) -> Sequence[str]:
    key = "attention.sliding_window_pattern"
    if model.own.get(key) is None:
        raise model.own.bad(key, "must say which layers slide")
    return [_SLIDING if slides else _FULL for slides in by_layer(model, key)]


def _one_of(model: GgufModel, key: str, numbers: set[float]) -> int:
    """The one number of some layers."""
    if len(numbers) != 1:
        raise model.own.bad(key, "must be the same for all layers of a kind")
    return int(next(iter(numbers)))


def _widths(model: GgufModel) -> Mapping[str, Any]:
    """Width of feed-forwards, which may be double where a layer reads the keys of another."""
    widths = by_layer(model, _FEED)
    shared = model.own.whole(_SHARED) or 0
    first = max(0, len(widths) - shared)
    width = _one_of(model, _FEED, set(widths[:first]))
    behind = {int(one) for one in widths[first:]} - {width}
    if behind - {2 * width}:
        raise model.own.bad(_FEED, f"must be {width}, or twice that at the end")
    if behind:
        _one_of(model, _FEED, set(widths[first:]))
    return {"intermediate_size": width, "use_double_wide_mlp": bool(behind)}


def _key_heads(model: GgufModel, kinds: Sequence[str]) -> Mapping[str, Any]:
    """Key heads of both kinds of layers; values are keys where there is no matrix for them."""
    counts = by_layer(model, _KV)
    found = {
        kind: _one_of(
            model,
            _KV,
            {count for count, one in zip(counts, kinds, strict=True) if one == kind},
        )
        for kind in set(kinds)
    }
    full, local = found.get(_FULL), found.get(_SLIDING, found.get(_FULL))
    full_layers = [layer for layer, kind in enumerate(kinds) if kind == _FULL]
    has_values = any(f"blk.{layer}.attn_v.weight" in model.tensors for layer in full_layers)
    if has_values and full != local:
        raise model.own.bad(_KV, "must be the same for all layers with values")
    return {
        "num_key_value_heads": local,
        "num_global_key_value_heads": full,
        "attention_k_eq_v": bool(full_layers) and not has_values,
    }


def _turned_pairs(model: GgufModel) -> float:
    """The part of the pairs of a head that are turned where layers see all."""
    from asyncgen.checkpoints.gguf.read_tensors import read_numbers

    tensor = model.tensors.get(_ROPE)
    if tensor is None:
        raise UnsupportedModelError(f"{model.file} has no {_ROPE}, by which a Gemma 4 turns heads")
    divisors = read_numbers(tensor)  # of one side, and short: that was looked at
    size = model.own.whole("attention.key_length")
    if size is not None and 2 * len(divisors) != size:
        raise ModelLoadError(
            f"{model.file}: {_ROPE} has {len(divisors)} divisors for the {size} features of "
            f"`{model.own.prefix}attention.key_length`, expected {size // 2}"
        )
    turned = sum(divisor == 1 for divisor in divisors)
    if not turned or not all(divisor >= _NEVER for divisor in divisors[turned:]):
        raise UnsupportedModelError(f"{model.file}: {_ROPE} turns pairs that it stretches as well")
    return turned / len(divisors)


def _gemma4(model: GgufModel) -> Mapping[str, Any]:
    own = model.own
    kinds = _kinds(model)
    theta = own.number("rope.freq_base") or 1_000_000.0
    if own.text("rope.scaling.type") not in (None, "none"):
        raise own.bad("rope.scaling.type", "supported is none")
    return {
        **_widths(model),
        **_key_heads(model, kinds),
        "layer_types": list(kinds),
        "enable_moe_block": bool(own.whole("expert_count")),
        "vocab_size_per_layer_input": _side(model, "token_embd.weight"),
        "rope_scaling": None,
        "rope_parameters": {
            _SLIDING: {"rope_type": "default", "rope_theta": _local_theta(model)},
            _FULL: {
                "rope_type": "proportional",
                "partial_rotary_factor": _turned_pairs(model),
                "rope_theta": as_written(theta),
            },
        },
    }


GEMMAS: Final[Mapping[str, Architecture]] = {
    "gemma-embedding": Architecture(
        "gemma3_text", _SLIDES, plus_one=True, more=_embedding, needs_window=True
    ),
    "gemma3n": Architecture(
        "gemma3n_text",
        {
            **_ROWS,
            "altup.num_inputs": "altup_num_inputs",
            "altup.active_idx": "altup_active_idx",
        },
        names={
            **_ROW_NAMES,
            "modality_norm": "altup_router_norm",
            "modality": "altup_router",
            "predict": "altup_predict_coef",
            "correct": "altup_correct_coef",
            "output_scale": "altup_correct_scale.weight",
            "laurel_left": "laurel_l",
            "laurel_right": "laurel_r",
            "laurel_norm": "laurel_post_norm",
            "spread": "altup_proj",
            "gather": "altup_unembd_proj",
        },
        more=_gemma3n,
        needs_window=True,
    ),
    "gemma4": Architecture(
        "gemma4_text",
        {
            **_ROWS,
            "attention.key_length": "global_head_dim",
            "attention.key_length_swa": "head_dim",
            _KV: "",
            _FEED: "",
            **EXPERTS,
        },
        names={
            **_ROW_NAMES,
            "scalar": "layer_output_scale.weight",
            "router_scale": "ffn_gate_inp.scale",
            "expert_scale": "ffn_down_exps.scale",
            "beside_norm": "post_ffw_norm_1",
            "expert_norm": "pre_ffw_norm_2",
            "experts_norm": "post_ffw_norm_2",
        },
        more=_gemma4,
        needs_window=True,
    ),
}
"""Architectures by the name in ``general.architecture``."""
