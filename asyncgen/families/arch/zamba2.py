"""Zamba2: Mamba 2 in each layer; before some of them a transformer block that layers share.

Glorioso et al., "The Zamba2 Suite" (2024), section 2.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen.families.plans.config_values import MOST_LAYERS
from asyncgen.families.plans.declaration import LLAMA_NAMES, Family, flag
from asyncgen.families.plans.layer_kinds import BOTH, STATE, listed, num_layers
from asyncgen.families.plans.layer_plan import SharedBlockPlan
from asyncgen.families.plans.state_plan import MAMBA_2, dual_plan

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues, Kinds
    from asyncgen.families.plans.state_plan import StatePlan

_USUAL = frozenset({6, 12, 18, 24, 30, 36, 42, 47, 51})
"""Layers with a block, of the 54 layers that a file has without a list."""

_NORM_EPS = 1e-5
"""Of the norm inside Mamba 2, whatever the file says of the others."""


def _layers(values: ConfigValues) -> int:
    stated = values.value("layers_block_type")
    is_list = isinstance(stated, (list, tuple)) and 0 < len(stated) <= MOST_LAYERS
    return len(stated) if is_list else num_layers(values)  # type: ignore[arg-type]


def _kinds(values: ConfigValues) -> Kinds:
    kinds = listed(
        lambda values, layer: BOTH if layer in _USUAL else STATE,
        {"mamba": STATE, STATE: STATE, BOTH: BOTH},
        "layers_block_type",
        _layers,
    )(values)
    if values.value("layers_block_type") is None:
        values.require("num_hidden_layers", 54)
    return kinds


def _head_dim(values: ConfigValues) -> int:
    """Read the size of a head, of which all heads together are twice as wide as the stream."""
    width, heads = 2 * values.count("hidden_size"), values.count("num_attention_heads")
    if width % heads or (values.flag("use_mem_rope") and width // heads % 2):
        allowed = f"must divide {width}, twice the hidden_size, and leave pairs if heads rotate"
        raise values.bad("num_attention_heads", heads, allowed)
    return width // heads


def _shared_block(values: ConfigValues, layer: int, kinds: Kinds) -> SharedBlockPlan | None:
    """Let layers have the first block, the second and so on in turn.

    As in the reference each layer has a block of its own where the head is not tied.
    """
    if kinds[layer] != BOTH:
        return None
    sharing = [number for number, kind in enumerate(kinds) if kind == BOTH]
    use, rank = sharing.index(layer), values.count("adapter_rank")
    blocks, is_tied = values.count("num_mem_blocks"), values.flag("tie_word_embeddings")
    block = use % blocks if is_tied else use
    adapts = values.flag("use_shared_attention_adapter")
    heads = values.count("num_attention_heads")
    if adapts and values.kv_heads(heads) != heads:
        allowed = f"with use_shared_attention_adapter it must be that of all heads, {heads}"
        raise values.bad("num_key_value_heads", values.kv_heads(heads), allowed)
    return SharedBlockPlan(block, sharing[block], use, rank, rank if adapts else 0)


def _mixer(values: ConfigValues, layer: int) -> StatePlan:
    plan = dual_plan(values, heads_key="n_mamba_heads", size_key=None)
    return replace(plan, eps=_NORM_EPS)


_BLOCK_NAMES = {
    "block_input_norm": "shared_transformer.input_layernorm",
    "block_qkv": " ".join(f"shared_transformer.self_attn.{part}_proj" for part in "qkv"),
    "block_output": "shared_transformer.self_attn.o_proj",
    "block_post_norm": "shared_transformer.pre_ff_layernorm",
    "block_gate_up": "shared_transformer.feed_forward.gate_up_proj",
    "block_down": "shared_transformer.feed_forward.down_proj",
    "block_qkv_adapters": " ".join(
        f"shared_transformer.self_attn.linear_{part}_adapter_list" for part in "qkv"
    ),
    "block_gate_up_adapters": "shared_transformer.feed_forward.gate_up_proj_adapter_list",
    "leave": "linear",
}
_NAMES = {
    **{key: LLAMA_NAMES[key] for key in ("embed_tokens", "layers", "lm_head", "input_norm")},
    "norm": "model.final_layernorm",
    "mixer": "mamba",
}

FAMILY = Family(
    "zamba2",
    "Zamba2ForCausalLM",
    names=_NAMES,
    names_by_kind={
        BOTH: {
            **_NAMES,
            **_BLOCK_NAMES,
            "input_norm": "mamba_decoder.input_layernorm",
            "mixer": "mamba_decoder.mamba",
        }
    },
    defaults={
        **MAMBA_2,
        "vocab_size": 32000,
        "hidden_size": 2560,
        "num_hidden_layers": 54,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
        "hidden_act": "gelu",
        "rms_norm_eps": 1e-5,
        "n_mamba_heads": 8,
        "state_size": 64,
        "num_mem_blocks": 1,
        "adapter_rank": 128,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    },
    spellings={
        "n_groups": "mamba_ngroups",
        "state_size": "mamba_d_state",
        "conv_kernel": "mamba_d_conv",
        "expand": "mamba_expand",
        "use_bias": "add_bias_linear",
    },
    unread=frozenset({"head_dim", "layer_types", "attention_bias", "mlp_bias", "use_conv_bias"}),
    only={"use_long_context": False},
    layers=_layers,
    head_dim=_head_dim,
    width=lambda values: values.count("intermediate_size", default=4 * values.count("hidden_size")),
    positions=lambda values: "rotary" if values.flag("use_mem_rope") else "none",
    has_qkv_bias=False,
    has_up_bias=flag("use_bias"),
    kinds=_kinds,
    mixer=_mixer,
    shared_block=_shared_block,
    has_feed_forward=lambda values, layer, kind: False,
    attention_scale=lambda values: (_head_dim(values) / 2) ** -0.5,
)
