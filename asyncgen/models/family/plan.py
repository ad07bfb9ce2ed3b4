"""What a network computes, as plain data: one `BlockPlan` a layer, and what lies around them.

A family's declaration and its ``config.json`` are settled into these; the decoder builds its
modules from them and asks no further. This module imports nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from asyncgen.models.family.experts import ExpertsPlan
    from asyncgen.models.family.states import StatePlan


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
class BlockPlan:
    """One block: attention and feed-forward. Which norms it has, its weight names tell.

    Attributes:
        norm: The kind of its norms.
        has_qkv_bias: Whether queries, keys and values have biases.
        has_output_bias: Whether the attention's output has one.
        has_up_bias: Whether the gate and what it lets through have biases.
        has_down_bias: Whether the feed-forward's output has one.
        head_norm: The norm of queries and keys.
        qkv_groups: In how many groups a joined matrix has its heads: each has its share of the
            queries, of the keys and of the values.
        qkv_order: In which order each group has them.
        is_interleaved: Whether neighbours are turned together, and not a first and a second half.
        activation: Name of the activation.
        is_gated: Whether what is activated is a gate.
        experts: The feed-forward, where it is one of experts; activation, gate and biases of it
            are in there then.
        mixer: What mixes tokens in the place of attention and feed-forward, with a state.
        is_parallel: Whether both parts see the stream as it was before the block.
        residual_scale: Factor on what each part adds to the stream.
    """

    norm: NormPlan = NormPlan()
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_up_bias: bool = False
    has_down_bias: bool = False
    head_norm: HeadNormPlan | None = None
    qkv_groups: int = 1
    qkv_order: str = "qkv"
    is_interleaved: bool = False
    activation: str = "silu"
    is_gated: bool = True
    experts: ExpertsPlan | None = None
    mixer: StatePlan | None = None
    is_parallel: bool = False
    residual_scale: float = 1.0


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
    """

    embedding_scale: float = 1.0
    positions: Positions = "rotary"
    position_offset: int = 0
    has_head_bias: bool = False
    logit_scale: float = 1.0
    logit_cap: float | None = None
