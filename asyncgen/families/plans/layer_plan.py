"""What a network computes, as plain data: one `LayerPlan` a layer, and what lies around them.

A family's declaration and its ``config.json`` are settled into these; the decoder builds its
modules from them and asks no further. This module imports nothing.
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
    """How rows are normalised.

    Attributes:
        kind: By their root mean square, or by mean and variance.
        has_weight: Whether there is a factor for each feature.
        has_bias: Whether there is a summand for each feature.
        plus: What is added to the stored weight; 1 where files store the distance to it.
    """

    kind: Literal["rms", "layer"] = "rms"
    has_weight: bool = True
    has_bias: bool = False
    plus: float = 0.0


@dataclass(frozen=True, slots=True)
class HeadNormPlan:
    """How queries and keys are normalised.

    Attributes:
        norm: The kind.
        span: Each head, with one weight for all (``"head"``) or one for each (``"each"``), or all
            heads of a token together (``"width"``).
        is_after_rope: Whether they are normalised after they were turned, and not before.
    """

    norm: NormPlan = NormPlan()
    span: Literal["head", "each", "width"] = "head"
    is_after_rope: bool = False


@dataclass(frozen=True, slots=True)
class LatentPlan:
    """Queries, keys and values that are made of short latent rows (DeepSeek-V2, section 2.1).

    Attributes:
        rank: Size of the row that keys and values are made of.
        query_rank: Size of the one that queries are made of; ``None``: of the stream itself.
        turned: Features of each query, and of the one key that all heads share, that are turned.
        unturned: Features of each query and each head's own key that are not; both are even.
        values: Size of a value.
        eps: Added to the mean square of latent rows before the root.
    """

    rank: int
    query_rank: int | None
    turned: int
    unturned: int
    values: int
    eps: float = 1e-6

    @property
    def head_dim(self) -> int:
        """Size of a head that has room for a key and for a value, an even number."""
        return max(self.turned + self.unturned, self.values + self.values % 2)


@dataclass(frozen=True, slots=True)
class HeadsPlan:
    """Heads of a layer that are fewer or narrower than those that the model's cache holds.

    Keys and values are repeated, and values get zeros behind them, which are gathered as zeros and
    left out of what attention gives.

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
    """What a layer has of its own, in a family whose layers differ in their shapes (`VariedLayer`).

    Queries and keys are normalised per head, values too, without a weight; the block has a norm
    before and after each part.

    Attributes:
        head_dim: Size of its heads.
        kv_heads: Its key and value heads.
        width: Of its feed-forward.
        values_are_keys: Whether values are what keys are before they are normalised and turned.
        keys_of: The layer whose keys and values it reads; ``None``: it makes its own.
        input_width: Features of the row that it takes in beside the stream; 0: there is none.
        has_scalar: Whether there is a factor on what it hands on.
        sparsity: Part of the gates that is not let through, were they normally distributed.
        laurel_rank: Of the branch beside the attention, in a model of several streams.
        scales_output: Whether its output there is scaled, by feature, where it meets its row.
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
class LayerPlan:
    """One block: attention and feed-forward, as a rule. Which norms it has, its weight names tell.

    Attributes:
        norm: The kind of its norms.
        heads: Its heads, where they are not those of the model.
        has_qkv_bias: Whether queries, keys and values have biases; latent rows in their place.
        has_output_bias: Whether the attention's output has one.
        has_up_bias: Whether the gate and what it lets through have biases.
        has_down_bias: Whether the feed-forward's output has one.
        qkv_limit: What queries, keys and values are cut off at, on either side of zero; ``None``:
            they are not.
        head_norm: The norm of queries and keys.
        latent: The latent rows that queries, keys and values are made of; ``None``: of the stream.
        has_attention: Whether it attends.
        has_feed_forward: Whether it has that.
        has_gate: Whether what attention gives is multiplied by the sigmoid of a product of its
            own with what attention was given.
        gates_in_queries: Whether it is so, and files have each head's gate behind its queries.
        qkv_groups: In how many groups a joined matrix has its heads: each has its share of the
            queries, of the keys and of the values.
        qkv_order: In which order each group has them.
        is_interleaved: Whether neighbours are turned together, and not a first and a second half.
        is_backward: Whether they are turned the other way round.
        activation: Name of the activation.
        is_gated: Whether what is activated is a gate.
        experts: The feed-forward, where it is one of experts; activation, gate and biases of it
            are in there then.
        mixer: What mixes tokens in the place of attention, or beside it, with a state.
        is_parallel: Whether both parts see the stream as it was before the block.
        residual_scale: Factor on what each part adds to the stream.
        heads_scale: Factor on what queries, keys and values are made of.
        output_scale: Factor on what attention adds, beside that of each part.
        gate_scale: Factor on the gate before it is activated.
        down_scale: Factor on what the feed-forward adds, beside that of each part.
        stays: Where what a norm gives takes the stream's place, for a part to be added to: factors
            on it before attention or mixer, and before the feed-forward; ``None``: it does not.
        varied: What it does not share with the others; ``None``: all are of one shape.
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
    has_attention: bool = True
    has_feed_forward: bool = True
    has_gate: bool = False
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
    stays: tuple[float, float] | None = None
    varied: VariedLayerPlan | None = None


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What is done before the first block and after the last.

    Attributes:
        embedding_scale: Factor on the embeddings.
        positions: How positions are told apart: by turning queries and keys, by the rows of a
            table, by sines and cosines that are added, by buckets of distances, or by nothing here.
        position_offset: Row of the table, or of the sines, that the first position has.
        has_head_bias: Whether the output head has a bias.
        logit_scale: Factor on the logits.
        logit_cap: Soft cap c of the logits: y becomes ``c * tanh(y / c)``; ``None``: none.
        layer_inputs: Rows of a table that ids are looked up in, too, and how many features of a
            row are for each layer; an id without a row has the first. ``None``: there is none.
        streams: How many there are side by side, of which each block computes the first.
    """

    embedding_scale: float = 1.0
    positions: Positions = "rotary"
    position_offset: int = 0
    has_head_bias: bool = False
    logit_scale: float = 1.0
    logit_cap: float | None = None
    layer_inputs: tuple[int, int] | None = None
    streams: int = 1
