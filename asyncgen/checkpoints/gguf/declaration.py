"""Types for the declarations of llama.cpp's architectures, and tables that most of them share.

`COMMON` maps keys of the metadata to keys of a ``config.json``, and `NAMES` maps modules to names
of tensors; an architecture adds its own. Keys are in Llama's spelling, and translated to that of
the family at the end. Imports no torch.
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
"""Keys of the architecture's metadata, and keys of a ``config.json``."""

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
"""Our modules, and the names of their tensors in GGUF."""

JOINED: Final[Mapping[str, str]] = {
    "qkv": "attn_qkv",
    "gate_up": "ffn_up",
    "latents": "attn_kv_a_mqa",
    "queries": "attn_q",
    "experts_gate_up": "ffn_gate_up_exps.*",
}
"""The same for files with one matrix for several, or without latent rows for queries."""


Form = Literal["same", "flat", "window", "decay", "decays"]
"""Form of a tensor in a file: the same as in a checkpoint; with further sides of 1 (flat); a
convolution without its middle side of 1 (window); the decay -exp(x) of the checkpoint's x, as a
list (decay) or in the third of four sides (decays)."""

CHOSEN: Final[Mapping[str, str]] = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
}
"""Further keys of models with experts."""

EXPERTS: Final[Mapping[str, str]] = {
    **CHOSEN,
    "expert_feed_forward_length": "moe_intermediate_size",
}
"""The same for experts with a separate width."""

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
"""The same for experts in groups, beside shared ones."""

SIGMOID: Final = 2
"""Value of ``expert_gating_func`` for a sigmoid; 0 means unknown."""


BIASES: Final[Mapping[str, str]] = {"attention_bias": "blk.0.attn_q.bias"}
"""Flag of models whose projections may have biases."""


def layers_of(model: GgufModel) -> int | None:
    """Return the number of layers, without those at the end that guess tokens ahead."""
    layers = model.own.whole("block_count")
    return layers and layers - (model.own.whole("nextn_predict_layers") or 0)


@dataclass(frozen=True, slots=True)
class Place:
    """Name and form of a tensor of a layer.

    Attributes:
        name: Name in the rules of weights.
        form: Form in the file.
    """

    name: str
    form: Form = "same"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One of llama.cpp's architectures.

    Attributes:
        model_type: The family.
        keys: Metadata beyond `COMMON`; one with an empty name is read by ``more`` alone.
        fixed: Keys of a ``config.json`` that are the same for all its models.
        flags: Keys that are true if a file has a tensor of this name; a ``*`` is any layer.
        names: Names that differ from `NAMES`.
        turns_neighbours: RoPE rotates neighbouring features in files of llama.cpp, whatever it
            rotates in the original checkpoints.
        plus_one: Norms are stored with the 1 that checkpoints leave out.
        has_parts: RoPE may rotate a part of a head.
        rope: Further keys of ``rope_scaling``, if there is any scaling.
        more: Function for further keys.
        places: Tensors with another name or form than in checkpoints, in layers with a mixer.
        values_take_turns: Value heads of the gated delta rule are ordered by their index within a
            key head, see `gated_delta`.
        stretched: Function that completes ``rope_scaling``.
        by_layer: Metadata that differ by layer, 0 for layers without them.
        needs_window: A file must have the window of sliding layers.
        gate: The only ``expert_gating_func`` that the family supports; ``None``: not checked.
        numbers: Metadata with numbers of each layer, the names of their parameters, and their
            shapes.
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
