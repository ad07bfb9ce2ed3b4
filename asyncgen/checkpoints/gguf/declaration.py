"""What one of llama.cpp's architectures is declared with, and what most of them share.

`COMMON` says which key of the metadata is which of a ``config.json``, and `NAMES` what each module
is called; an architecture adds what it has of its own. Values are in Llama's spelling; a family's
spelling of them is looked up where they are written down. This module imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.checkpoints.gguf.gguf_file import GgufModel

COMMON: Final[Mapping[str, str]] = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_epsilon": "rms_norm_eps",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""Metadata behind the name of the architecture, and keys of a ``config.json``."""

NAMES: Final[Mapping[str, str]] = {
    "embed_tokens": "token_embd",
    "embed_positions": "position_embd",
    "embed_norm": "token_embd_norm",
    "layers": "blk",
    "norm": "output_norm",
    "lm_head": "output",
    "input_norm": "attn_norm",
    "qkv": "attn_q attn_k attn_v",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "sinks": "attn_sinks.weight",
    "mixer": "mixer",
    "attention_gate": "attn_gate",
    "output": "attn_output",
    "output_norm": "post_attention_norm",
    "post_norm": "ffn_norm",
    "down_norm": "post_ffw_norm",
    "gate_up": "ffn_gate ffn_up",
    "up": "ffn_up",
    "down": "ffn_down",
    "router": "ffn_gate_inp",
    "correction": "exp_probs_b.bias",
    "experts_gate_up": "ffn_gate_exps.* ffn_up_exps.*",
    "experts_down": "ffn_down_exps.*",
    "shared_gate": "ffn_gate_inp_shexp",
    "shared_gate_up": "ffn_gate_shexp ffn_up_shexp",
    "shared_down": "ffn_down_shexp",
}
"""Our modules, and their names in GGUF."""

JOINED: Final[Mapping[str, str]] = {
    "qkv": "attn_qkv",
    "gate_up": "ffn_up",
    "latents": "attn_kv_a_mqa",
    "queries": "attn_q",
    "experts_gate_up": "ffn_gate_up_exps.*",
}
"""The same where a file has one matrix for several, or no latent rows for queries."""


Form = Literal["same", "flat", "window", "decay", "decays"]
"""How a file has a tensor: as a checkpoint has it; with sides of one beside its own; with other
ones than that in the middle of a convolution's; as the decay -exp(x) of what a checkpoint has, in a
list or, last, in the third of four sides."""

CHOSEN: Final[Mapping[str, str]] = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
}
"""What models with experts add."""

EXPERTS: Final[Mapping[str, str]] = {
    **CHOSEN,
    "expert_feed_forward_length": "moe_intermediate_size",
}
"""The same where experts have a width of their own."""

GROUPED: Final[Mapping[str, str]] = {
    **EXPERTS,
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "leading_dense_block_count": "first_k_dense_replace",
}
"""The same where they are in groups, beside shared ones."""

SIGMOID: Final = 2
"""Of ``expert_gating_func``; 0 says nothing."""


BIASES: Final[Mapping[str, str]] = {"attention_bias": "blk.0.attn_q.bias"}
"""Flag of models whose projections may have biases."""


def layers_of(model: GgufModel) -> int | None:
    """Return the number of layers, without those at the end that guess tokens ahead."""
    layers = model.own.whole("block_count")
    return layers and layers - (model.own.whole("nextn_predict_layers") or 0)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint has a tensor of a layer.

    Attributes:
        name: What the rules of weights call it.
        form: How the file has it.
    """

    name: str
    form: Form = "same"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of llama.cpp's architectures.

    Attributes:
        model_type: What it is called here.
        keys: Metadata that it adds to `COMMON`; one without a name is read by ``more`` alone.
        fixed: Keys of a ``config.json`` that are the same for all its models.
        flags: Keys that are true where a file has a tensor of this name; a ``*`` is any layer.
        names: Names that are not those of `NAMES`.
        turns_neighbours: Whether neighbours of a head are turned together in files of llama.cpp,
            whatever they are in the checkpoints that those were made of.
        plus_one: Whether norms are stored with the one that checkpoints leave out.
        has_parts: Whether a part of a head may be turned.
        rope: What belongs to ``rope_scaling``, where positions are stretched.
        more: What is to be worked out.
        places: Tensors that have another name or form than in checkpoints, in layers with a mixer.
        values_take_turns: Whether values' heads of the gated delta rule lie by their place beside a
            head of keys, see `gated_delta`.
        stretched: What is to be worked out of ``rope_scaling``.
        by_layer: Metadata that differ by layer and are 0 where a layer has none of what they count.
        needs_window: Whether a file must say how far layers that slide see.
        gate: The one ``expert_gating_func`` that the family computes; ``None``: it is not looked at
            here.
        numbers: Numbers of a layer that are metadata, and what the rules of weights call them, with
            their shapes.
    """

    model_type: str
    keys: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    turns_neighbours: bool = False
    plus_one: bool = False
    has_parts: bool = False
    rope: Mapping[str, Any] = field(default_factory=dict)
    more: Callable[[GgufModel], Mapping[str, Any]] | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    stretched: Callable[[GgufModel, Mapping[str, Any]], Mapping[str, Any]] | None = None
    by_layer: tuple[str, ...] = ()
    numbers: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    values_take_turns: bool = False
    needs_window: bool = False
    gate: int | None = None
