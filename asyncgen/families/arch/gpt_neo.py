"""GPT-Neo: GPT-2 with matrices as ``[out, in]``, unscaled scores; every second layer is local."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.arch.gpt2 import GPT2_DEFAULTS, GPT2_NAMES, four_times
from asyncgen.families.plans.declaration import LAYER, Family, without

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


def _is_local(values: ConfigValues, layer: int) -> bool:
    kinds = values.value("attention_layers")
    if kinds is None:
        stated = values.value("attention_types")
        try:
            kinds = [kind for names, times in stated for _ in range(times) for kind in names]  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            kinds = None
    if not isinstance(kinds, (list, tuple)) or len(kinds) != values.count("num_hidden_layers"):
        raise values.bad("attention_types", kinds, "must give each layer's kind")
    if kinds[layer] not in ("global", "local"):
        raise values.bad("attention_types", kinds, "kinds are global and local")
    return bool(kinds[layer] == "local")


FAMILY = Family(
    "gpt_neo",
    "GPTNeoForCausalLM",
    names={
        **GPT2_NAMES,
        "qkv": "attn.attention.q_proj attn.attention.k_proj attn.attention.v_proj",
        "output": "attn.attention.out_proj",
    },
    # Causal masks, which early checkpoints stored with every layer.
    unneeded=(r"\.attn\.attention\.(masked_)?bias$",),
    defaults={
        **without(GPT2_DEFAULTS, "scale_attn_weights"),
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "max_position_embeddings": 2048,
        "sliding_window": 256,
        "attention_types": [[["global", "local"], 12]],
    },
    spellings={
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "sliding_window": "window_size",
        "hidden_act": "activation_function",
        "rms_norm_eps": "layer_norm_epsilon",
    },
    unread=frozenset({"hidden_act", "rms_norm_eps", "num_key_value_heads", "head_dim"}),
    width=four_times,
    positions="table",
    norm=LAYER,
    has_qkv_bias=False,
    has_output_bias=True,
    has_up_bias=True,
    is_gated=False,
    window=lambda values: values.count("sliding_window"),
    slides=_is_local,
    attention_scale=1.0,
)
