"""Plan of a network as plain data: one `LayerPlan` a layer, and a `StreamPlan` around them.

A family's declaration and a ``config.json`` together give these plans; the decoder builds its
modules from them alone. This module imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from asyncgen.families.plans.experts_plan import ExpertsPlan
    from asyncgen.families.plans.state_plan import MixerPlan


Positions: TypeAlias = Literal["rotary", "table", "sinusoids", "buckets", "none"]
"""See `StreamPlan`."""


@dataclass(frozen=True, slots=True)
class NormPlan:
    """Kind of a normalisation.

    Attributes:
        kind: By the root mean square, or by mean and variance.
        has_weight: True if there is a factor for each feature.
        has_bias: True if there is a summand for each feature.
        plus: Added to the stored weight; 1 if files store the weight less one.
    """

    kind: Literal["rms", "layer"] = "rms"
    has_weight: bool = True
    has_bias: bool = False
    plus: float = 0.0


@dataclass(frozen=True, slots=True)
class HeadNormPlan:
    """Normalisation of queries and keys.

    Attributes:
        norm: Kind of the norm.
        span: Each head, with one weight for all (``"head"``) or one for each (``"each"``), or all
            heads of a token together (``"width"``).
        is_after_rope: True if they are normalised after rotation, and not before.
    """

    norm: NormPlan = NormPlan()
    span: Literal["head", "each", "width"] = "head"
    is_after_rope: bool = False


@dataclass(frozen=True, slots=True)
class LatentPlan:
    """Queries, keys and values that are made of short latent rows (DeepSeek-V2, section 2.1).

    Attributes:
        rank: Size of the row that keys and values are made of.
        query_rank: Size of the one that queries are made of; ``None``: they are made of the stream.
        rope_dim: Rotated features of each query, and of the one key that all heads share.
        nope_dim: Other features of each query and of each head's own key; both numbers are even.
        values: Size of a value.
        eps: Added to the mean square of latent rows before the root.
    """

    rank: int
    query_rank: int | None
    rope_dim: int
    nope_dim: int
    values: int
    eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        """Size of a head that has room for a key and for a value, an even number."""
        return max(self.rope_dim + self.nope_dim, self.values + self.values % 2)


@dataclass(frozen=True, slots=True)
class HeadsPlan:
    """Heads of a layer that are fewer or narrower than those that the model's cache holds.

    Keys and values are repeated, and values get zeros behind them; the zeros of attention's result
    are left out.

    Attributes:
        kv_heads: Key and value heads; divides those of the cache.
        values: Size of a value; at most that of a key.
        value_scale: Factor on the values.
    """

    kv_heads: int
    values: int
    value_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class VariedLayerPlan:
    """Shape of a layer in a family whose layers differ in their shapes (`VariedLayer`).

    Queries and keys are normalised per head, values too, without a weight; the layer has a norm
    before and after each part.

    Attributes:
        head_dim: Size of its heads.
        kv_heads: Its key and value heads.
        width: Width of its feed-forward.
        values_are_keys: True if values are the keys before normalisation and rotation.
        keys_of: The layer whose keys and values it reads; ``None``: it makes its own.
        input_width: Features of the row that it takes in beside the stream; 0: there is none.
        has_scalar: True if there is a factor on its output.
        sparsity: Part of the gates that is set to zero, if they are normally distributed.
        laurel_rank: Rank of the branch beside the attention, in a model of several streams.
        scales_output: True if its output is scaled, by feature, before it is mixed with its own
            row.
    """

    head_dim: int
    kv_heads: int
    width: int
    values_are_keys: bool = False
    keys_of: int | None = None
    input_width: int = 0
    has_scalar: bool = True
    sparsity: float = 0.0
    laurel_rank: int = 0
    scales_output: bool = False


@dataclass(frozen=True, slots=True)
class SharedBlockPlan:
    """Use of a transformer block that several layers share, with adapters of each use (Zamba2).

    Attributes:
        block: Number of the block.
        first: Layer that has it first; files name its weights after this one.
        use: Number of the layer among those that have a block; files name its adapters after that.
        rank: Rank of the adapter of the feed-forward.
        attention_rank: Rank of those of queries, keys and values; 0: there are none.
    """

    block: int
    first: int
    use: int
    rank: int
    attention_rank: int


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One decoder layer: usually attention and feed-forward. The names of its weights tell its
    norms.

    Attributes:
        norm: Kind of its norms.
        heads: Its heads, if they are not those of the model.
        has_qkv_bias: True if queries, keys and values have biases; or the latent rows in their
            place.
        has_output_bias: True if the attention's output has one.
        has_up_bias: True if gate and up-projection have biases.
        has_down_bias: True if the feed-forward's output has one.
        qkv_limit: Queries, keys and values are clamped to ± this; ``None``: they are not.
        head_norm: The norm of queries and keys.
        latent: The latent rows that queries, keys and values are made of; ``None``: of the stream.
        is_differential: True if attention is the difference of two, in pairs of heads; heads of the
            cache are then twice as wide as a query.
        has_attention: True if it attends.
        has_feed_forward: True if it has a feed-forward.
        has_gate: True if attention's result is multiplied by the sigmoid of a product of its input.
        gates_heads: True if such a product has one number a head, and not one a feature.
        gates_in_queries: True if it is so, and files have each head's gate behind its queries.
        qkv_groups: Number of groups of heads in a joined matrix: each has its share of the queries,
            of the keys and of the values.
        qkv_order: Order of these in each group.
        is_interleaved: True if adjacent features are rotated together, and not a first and a second
            half.
        is_backward: True if they are rotated the other way round.
        activation: Name of the activation.
        is_gated: True if the activation is applied to a gate.
        experts: The feed-forward, if it is one of experts; its activation, gate and biases stand
            there.
        mixer: Mixes tokens with a state, in the place of attention or beside it.
        is_parallel: True if both parts read the stream as it was before the layer.
        residual_scale: Factor on what each part adds to the stream.
        heads_scale: Factor on the input of queries, keys and values.
        output_scale: Factor on what attention adds, beside that of each part.
        gate_scale: Factor on the gate before it is activated.
        down_scale: Factor on what the feed-forward adds, beside that of each part.
        normed_residual: Factors on the norms whose results replace the stream, before attention or
            mixer, and before the feed-forward; ``None``: the stream is not replaced.
        varied: Shape that it does not share with the others; ``None``: all are of one shape.
        shared_block: Block before its mixer that it shares with other layers: its attention is
            there.
    """

    norm: NormPlan = NormPlan()
    heads: HeadsPlan | None = None
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_up_bias: bool = False
    has_down_bias: bool = False
    qkv_limit: float | None = None
    head_norm: HeadNormPlan | None = None
    latent: LatentPlan | None = None
    is_differential: bool = False
    has_attention: bool = True
    has_feed_forward: bool = True
    has_gate: bool = False
    gates_heads: bool = False
    gates_in_queries: bool = False
    qkv_groups: int = 1
    qkv_order: str = "qkv"
    is_interleaved: bool = False
    is_backward: bool = False
    activation: str = "silu"
    is_gated: bool = True
    experts: ExpertsPlan | None = None
    mixer: MixerPlan | None = None
    is_parallel: bool = False
    residual_scale: float = 1.0
    heads_scale: float = 1.0
    output_scale: float = 1.0
    gate_scale: float = 1.0
    down_scale: float = 1.0
    normed_residual: tuple[float, float] | None = None
    varied: VariedLayerPlan | None = None
    shared_block: SharedBlockPlan | None = None


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Steps before the first layer and after the last.

    Attributes:
        embedding_scale: Factor on the embeddings.
        scales_rows: True if the factor is on the rows of the table, so that embeddings that come in
            the place of ids hold it already; else it is on all that goes into the layers.
        rounds_scale: True if the factor is rounded to the dtype of the rows.
        positions: Kind of positions: rotation of queries and keys, rows of a table, sines and
            cosines that are added, buckets of distances, or none here.
        position_offset: Row of the table, or of the sines, that the first position has.
        has_head_bias: True if the output head has a bias.
        logit_scale: Factor on the logits.
        logit_cap: Soft cap c of the logits: y becomes ``c * tanh(y / c)``; ``None``: none.
        layer_inputs: Rows of a second table of ids, and features of a row for each layer; an id
            without a row has the first. ``None``: there is no such table.
        streams: Number of streams side by side, of which each layer computes the first.
    """

    embedding_scale: float = 1.0
    scales_rows: bool = False
    rounds_scale: bool = False
    positions: Positions = "rotary"
    position_offset: int = 0
    has_head_bias: bool = False
    logit_scale: float = 1.0
    logit_cap: float | None = None
    layer_inputs: tuple[int, int] | None = None
    streams: int = 1
