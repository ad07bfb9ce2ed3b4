"""What a feed-forward of experts is, as plain data. This module imports nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MOST_EXPERTS: Final = 1024
"""The most experts that there is a choice of (``kernels.h``)."""


@dataclass(frozen=True, slots=True)
class Routing:
    """A choice of experts by their logits.

    Attributes:
        chosen: Experts of a token.
        scoring: What becomes of the logits: ``"softmax"``, over all experts; ``"sigmoid"``, each by
            itself; ``"sparsemixer"`` (Phi-3.5-MoE): one expert after another, the largest logit,
            weighed by a softmax over those of the remaining ones that are not far below it.
        is_normalised: Whether the weights of a token's experts are divided by their sum. With
            ``"softmax"`` that is a softmax over the chosen logits alone.
        scale: Factor on the weights.
        weighs_inputs: Whether weights are factors on what experts are given, and not on what they
            give.
        corrects_logits: Whether a correction for the choice is added to logits, and not to scores.
        groups: Groups that the experts are divided into, one behind the other
            (DeepSeek-V2, section 2.2.2).
        chosen_groups: Only experts of so many best groups are chosen.
        best_of_group: A group is worth the sum of so many of its best scores: 1 (DeepSeek-V2) or
            2 (DeepSeek-V3).
        tolerance: How far below the largest a logit may be, ``"sparsemixer"`` alone: relative to
            the larger of the largest one and its own size.
    """

    chosen: int
    scoring: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    is_normalised: bool = False
    scale: float = 1.0
    weighs_inputs: bool = False
    corrects_logits: bool = False
    groups: int = 1
    chosen_groups: int = 1
    best_of_group: int = 1
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class GatePlan:
    """What an expert lets through of its second half.

    Attributes:
        kind: ``"silu"``, ``"gelu"``, ``"gelu_tanh"``: that function of the first half, times the
            second. ``"clamped"`` (gpt-oss): x · sigmoid(alpha · x) of the first half, at most
            ``limit``, times one more than the second, which lies within ± ``limit``.
        alpha: See above.
        limit: See above.
        is_gated: Whether there is a gate at all; else all of the first product is activated, by
            what ``kind`` says, which may be ``"relu"`` or ``"relu2"`` too.
    """

    kind: Literal["silu", "gelu", "gelu_tanh", "clamped", "relu", "relu2"] = "silu"
    alpha: float = 1.702
    limit: float = 7.0
    is_gated: bool = True

    @property
    def parts(self) -> int:
        """How many times as wide as an expert its first product is."""
        return 2 if self.is_gated else 1


@dataclass(frozen=True, slots=True)
class ExpertsPlan:
    """A feed-forward of which each token uses a few of many.

    Attributes:
        experts: How many there are.
        width: Of each.
        routing: How a token's are chosen.
        gate: What each expert lets through, the shared one too (which is never ``"clamped"``).
        has_bias: Whether experts have biases.
        has_router_bias: Whether the router has.
        is_corrected: Whether scores are corrected for the choice, but not for the weights
            (DeepSeek-V3, section 2.1.2).
        shared_width: Of the expert that every token passes through as well; 0: there is none.
        latent: Size of the rows that experts take and give, where a product leads there and one
            back; 0: they take and give the stream, as the shared one does.
        scale: Factor on what all of them give together.
        is_shared_gated: Whether the sigmoid of a logit of its own is a factor on what that gives.
        has_row_of_corrections: Whether files store corrections as a matrix of one row.
        takes_turns: Whether files store the gate's outputs and those that it lets through in
            turn.
        is_transposed: Whether tensors of all experts have their matrices as ``[in, out]``.
        is_flat: Whether tensors of all experts have two axes: matrices lie one below the other,
            those that lead back as ``[in, out]``.
    """

    experts: int
    width: int
    routing: Routing
    gate: GatePlan = GatePlan()
    has_bias: bool = False
    has_router_bias: bool = False
    is_corrected: bool = False
    shared_width: int = 0
    latent: int = 0
    scale: float = 1.0
    is_shared_gated: bool = False
    has_row_of_corrections: bool = False
    takes_turns: bool = False
    is_transposed: bool = False
    is_flat: bool = False
