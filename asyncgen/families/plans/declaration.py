"""Declaration of a model family: its ``config.json``, its weight names, its layers.

A family is one `Family`, declared in a file of ``arch/``. A setting is either the same for all its
models, or a function of the file's values. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from asyncgen.families.plans.config_values import ConfigValues, Kinds
from asyncgen.families.plans.layer_plan import (
    HeadNormPlan,
    HeadsPlan,
    LatentPlan,
    NormPlan,
    Positions,
    SharedBlockPlan,
    VariedLayerPlan,
)

if TYPE_CHECKING:
    from asyncgen.families.plans.experts_plan import ExpertsPlan
    from asyncgen.families.plans.rope_config import QueryScaling
    from asyncgen.families.plans.state_plan import MixerPlan

T = TypeVar("T")
Setting: TypeAlias = T | Callable[[ConfigValues], T]
"""A constant, or a function of the file's values."""

RMS = NormPlan()
"""By the root mean square."""

RMS_PLUS_ONE = NormPlan(plus=1.0)
"""The same; files store the weight less one."""

LAYER = NormPlan("layer", has_bias=True)
"""By mean and variance."""

LLAMA_NAMES: Mapping[str, str] = {
    "embed_tokens": "model.embed_tokens",
    "layers": "model.layers",
    "norm": "model.norm",
    "lm_head": "lm_head",
    "input_norm": "input_layernorm",
    "qkv": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "output": "self_attn.o_proj",
    "post_norm": "post_attention_layernorm",
    "gate_up": "mlp.gate_proj mlp.up_proj",
    "down": "mlp.down_proj",
}
"""Names of Llama's weights, which most families have kept."""

SMALL: Mapping[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Llama's sizes, which many families use for missing keys."""


def without(table: Mapping[str, T], *keys: str) -> Mapping[str, T]:
    """Copy a table without some keys."""
    return {key: value for key, value in table.items() if key not in keys}


def flag(key: str) -> Callable[[ConfigValues], bool]:
    """Make a setting that a key of the file switches on or off."""
    return lambda values: values.flag(key)


def slides_but_every(key: str) -> Callable[[ConfigValues, int], bool]:
    """Let all layers slide but each n-th, with the number n under a key."""
    return lambda values, layer: (layer + 1) % values.count(key) != 0


def always(value: T) -> Callable[..., T]:
    """Make a setting that is the same for every file and every layer."""
    return lambda *given: value


@dataclass(frozen=True, slots=True)
class Family:
    """A model family. Settings that are left out are as in Llama.

    Attributes:
        model_type: Its name in ``config.json``.
        class_name: Public name of the whole model.
        tokenizer_names: Public names of its tokenizer, if the family has its own.
        has_encoder: True if there is an encoder as well.

        names: The files' names of each module. Those of a layer stand behind the name of ``layers``
            and a number; several names are joined; ``*`` is each query or key head, or each expert;
            experts of one tensor are named in full. A norm that is not named does not exist.
        names_by_kind: Names in the place of `names` for layers of some kinds.
        other_names: Names that some files have for a module of a layer, by the name here.
        unneeded: Regular expressions of names that checkpoints carry and no model needs.
        guesses_ahead: True if there may be ``num_nextn_predict_layers`` more layers behind the last
            one, which guess tokens ahead and are not needed.
        is_transposed: True if matrices are stored as ``[in, out]``.
        qkv_groups: See `LayerPlan`.
        qkv_order: See `LayerPlan`.

        defaults: Values of missing keys.
        spellings: Names that the type has for keys of the others; either is read. A key inside an
            object is named with a dot.
        unread: Keys of the others that the type does not have.
        only: Keys with the one value that is supported; any other value is refused.
        layers: Number of layers.
        kv_heads: Key and value heads that are kept; ``None``: ``num_key_value_heads`` of the file.
        head_dim: Size of a head; ``None``: ``head_dim`` of the file.
        heads: Heads of a layer of this number and kind, if they differ, see `LayerPlan`.
        width: Width of the feed-forward.

        positions: See `StreamPlan`.
        position_offset: See `StreamPlan`.
        partial_rotary_factor: Part of a head that is rotated; ``None``: all of it, and nothing else
            is supported.
        is_interleaved: See `LayerPlan`.
        is_backward: See `LayerPlan`.
        has_rope: True for layers, by number and kind, that rotate at all.
        layer_theta: Theta of a layer of this number, if it has its own.
        no_rope_query_scaling: Factors by position on the queries of layers that do not rotate.
        ropes_by_kind: True if sliding layers may have another rope, see `rope_values`.
        has_rope_alpha: True if ``alpha`` of a ``dynamic`` rope stretches its theta.
        scales_queries: True if queries may grow with their position, see `QueryScaling`.

        norm: Norm of the stream.
        epsilon: Added before the root of a norm.
        head_norm: Norm of queries and keys.
        latent: See `LayerPlan`.
        is_differential: See `LayerPlan`.
        has_head_norm: True for layers, by number and kind, that have it.
        has_qkv_bias: See `LayerPlan`.
        has_output_bias: See `LayerPlan`; ``None``: the same as `has_qkv_bias`.
        qkv_limit: See `LayerPlan`.
        has_gate: See `LayerPlan`.
        gates_heads: See `LayerPlan`.
        gates_in_queries: See `LayerPlan`.
        has_up_bias: See `LayerPlan`.
        has_down_bias: See `LayerPlan`; ``None``: the same as `has_up_bias`.
        activation: Name of the activation.
        is_gated: True if the activation is applied to a gate.
        experts: Experts of a layer of this number; ``None``: its feed-forward has none.
        kinds: Kind of each layer, if not all of them attend, see `layer_kinds`; ``None``: all do.
        mixer: Mixer of a layer of this number, in the place of attention or beside it, if its kind
            has one.
        allows_dola: True if DoLa is allowed though layers keep states, as in the reference, which
            does not count short convolutions and lightning attention among these.
        has_feed_forward: True for layers, by number and kind, that have a feed-forward.
        varied: Shape of a layer of this number, if layers differ; gets the kinds of all layers.
        shared_block: See `LayerPlan`; of a layer of this number; gets the kinds of all layers.
        is_parallel: True if both parts of a layer read the same stream.

        window: Keys that a query of a sliding layer sees; ``None``: no layer slides.
        slides: True for layers that slide, if the file does not list them.
        has_layer_types: True if the file may list them.
        is_chunked: True if queries of sliding layers see their chunk, see `AttentionOptions`.
        attention_scale: Factor on the scores of all layers or of each; ``None``: 1 / sqrt(D).
        attention_cap: Soft cap of the scores.
        has_sinks: True for layers, by number and kind, whose query heads have a learned score
            without a key.
        slopes: Slopes of ALiBi, one a query head.
        spans_gaps: See `AttentionOptions`.
        is_bidirectional: True if queries see later keys too.

        embedding_scale: See `StreamPlan`.
        scales_rows: See `StreamPlan`.
        rounds_scale: See `StreamPlan`.
        residual_scale: See `LayerPlan`.
        heads_scale: See `LayerPlan`.
        output_scale: See `LayerPlan`.
        gate_scale: See `LayerPlan`.
        down_scale: See `LayerPlan`.
        normed_residual: See `LayerPlan`; of a layer of this number and kind.
        has_head_bias: See `StreamPlan`.
        logit_scale: See `StreamPlan`.
        logit_cap: See `StreamPlan`.
        layer_inputs: See `StreamPlan`.
        streams: See `StreamPlan`.
        has_token_types: True if a token may have a type, whose row of the embedding table is added.
    """

    model_type: str
    class_name: str
    tokenizer_names: tuple[str, ...] = ()
    has_encoder: bool = False

    names: Setting[Mapping[str, str]] = field(default_factory=lambda: LLAMA_NAMES)
    names_by_kind: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    other_names: Mapping[str, str] = field(default_factory=dict)
    unneeded: tuple[str, ...] = ()
    guesses_ahead: bool = False
    is_transposed: bool = False
    qkv_groups: Setting[int] = 1
    qkv_order: str = "qkv"

    defaults: Mapping[str, object] = field(default_factory=lambda: SMALL)
    spellings: Mapping[str, str] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    only: Mapping[str, object] = field(default_factory=dict)
    layers: Setting[int | None] = None
    kv_heads: Setting[int | None] = None
    head_dim: Setting[int | None] = None
    heads: Callable[[ConfigValues, int, str], HeadsPlan | None] = always(None)
    width: Setting[int] = lambda values: values.count("intermediate_size")

    positions: Setting[Positions] = "rotary"
    position_offset: int = 0
    partial_rotary_factor: Setting[float | None] = None
    is_interleaved: Setting[bool] = False
    is_backward: bool = False
    has_rope: Callable[[ConfigValues, int, str], bool] = always(True)
    layer_theta: Callable[[ConfigValues, int], float | None] = always(None)
    no_rope_query_scaling: Setting[QueryScaling | None] = None
    ropes_by_kind: bool = False
    has_rope_alpha: bool = False
    scales_queries: bool = False

    norm: Setting[NormPlan] = RMS
    epsilon: Setting[float] = ConfigValues.epsilon
    head_norm: Setting[HeadNormPlan | None] = None
    latent: Setting[LatentPlan | None] = None
    is_differential: bool = False
    has_head_norm: Callable[[ConfigValues, int, str], bool] = always(True)
    has_qkv_bias: Setting[bool] = flag("attention_bias")
    has_output_bias: Setting[bool | None] = None
    qkv_limit: Setting[float | None] = None
    has_gate: Setting[bool] = False
    gates_heads: bool = False
    gates_in_queries: bool = False
    has_up_bias: Setting[bool] = False
    has_down_bias: Setting[bool | None] = None
    activation: Setting[str] = ConfigValues.activation
    is_gated: Setting[bool] = True
    experts: Callable[[ConfigValues, int], ExpertsPlan | None] = always(None)
    kinds: Callable[[ConfigValues], Kinds] | None = None
    mixer: Callable[[ConfigValues, int], MixerPlan | None] = always(None)
    allows_dola: bool = False
    has_feed_forward: Callable[[ConfigValues, int, str], bool] = always(True)
    varied: Callable[[ConfigValues, int, Kinds], VariedLayerPlan | None] = always(None)
    shared_block: Callable[[ConfigValues, int, Kinds], SharedBlockPlan | None] = always(None)
    is_parallel: Setting[bool] = False

    window: Setting[int | None] = None
    slides: Callable[[ConfigValues, int], bool] = always(False)
    has_layer_types: bool = False
    is_chunked: bool = False
    attention_scale: Setting[float | tuple[float, ...] | None] = None
    attention_cap: Setting[float | None] = None
    has_sinks: Callable[[ConfigValues, int, str], bool] = always(False)
    slopes: Setting[tuple[float, ...] | None] = None
    spans_gaps: bool = False
    is_bidirectional: Setting[bool] = False

    embedding_scale: Setting[float] = 1.0
    scales_rows: bool = False
    rounds_scale: bool = False
    residual_scale: Setting[float] = 1.0
    heads_scale: Setting[float] = 1.0
    output_scale: Setting[float] = 1.0
    gate_scale: Setting[float] = 1.0
    down_scale: Setting[float] = 1.0
    normed_residual: Callable[[ConfigValues, int, str], tuple[float, float] | None] = always(None)
    has_head_bias: Setting[bool] = False
    logit_scale: Setting[float] = 1.0
    logit_cap: Setting[float | None] = None
    layer_inputs: Setting[tuple[int, int] | None] = None
    streams: Setting[int] = 1
    has_token_types: bool = False


def settled(setting: Setting[T], values: ConfigValues) -> T:
    """Return the value of a setting for a file."""
    return setting(values) if callable(setting) else setting
