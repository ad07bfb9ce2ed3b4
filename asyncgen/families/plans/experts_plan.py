"""Plans of mixtures of experts, as plain data. This module imports nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MOST_EXPERTS: Final = 1024
"""Most experts that our kernels choose from (``kernels.h``)."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Rules that choose experts by their logits.

    Attributes:
        chosen: Experts of a token.
        scoring: Scores of the logits: ``"softmax"``, over all experts; ``"sigmoid"``, each by
            itself; ``"sparsemixer"`` (Phi-3.5-MoE): one expert after another, the largest logit,
            weighed by a softmax over those of the remaining ones that are not far below it.
        is_normalised: True if the weights of a token's experts are divided by their sum. With
            ``"softmax"`` that is a softmax over the chosen logits alone.
        scale: Factor on the weights.
        weighs_inputs: True if weights are factors on the experts' inputs, and not on their outputs.
        corrects_logits: True if a correction for the choice is added to logits, and not to scores.
        groups: Groups that the experts are divided into, one behind the other (DeepSeek-V2, section
            2.2.2).
        chosen_groups: Number of best groups that experts are chosen from.
        best_of_group: A group is worth the sum of so many of its best scores: 1 (DeepSeek-V2) or 2
            (DeepSeek-V3).
        tolerance: Largest distance of a logit below the largest, ``"sparsemixer"`` alone: relative
            to the larger of the largest one and its own size.
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
    """Gate of an expert.

    Attributes:
        kind: ``"silu"``, ``"gelu"``, ``"gelu_tanh"``: that function of the first half, times the
            second. ``"clamped"`` (gpt-oss): x · sigmoid(alpha · x) of the first half, at most
            ``limit``, times one more than the second, which lies within ± ``limit``.
        alpha: See above.
        limit: See above.
        is_gated: False if there is no gate; then ``kind`` is the activation of the whole first
            product, and may be ``"relu"`` or ``"relu2"`` too.
    """

    kind: Literal["silu", "gelu", "gelu_tanh", "clamped", "relu", "relu2"] = "silu"
    alpha: float = 1.702
    limit: float = 7.0
    is_gated: bool = True

    @property
    def parts(self) -> int:
        """Width of the first product, in widths of an expert."""
        return 2 if self.is_gated else 1


@dataclass(frozen=True, slots=True)
class ExpertsPlan:
    """A feed-forward of which each token uses a few of many.

    Attributes:
        experts: Number of experts.
        width: Width of each.
        routing: Rules of the choice.
        gate: Gate of each expert, of the shared one too (which is never ``"clamped"``).
        has_bias: True if experts have biases.
        has_router_bias: True if the router has one.
        is_corrected: True if scores are corrected for the choice, but not for the weights
            (DeepSeek-V3, section 2.1.2).
        shared_width: Width of the expert that every token passes through as well; 0: there is none.
        latent: Size of the rows that experts take and give, with a product before and one behind;
            0: they take and give the stream, as the shared one does.
        scale: Factor on the sum of all of them.
        is_shared_gated: True if the shared expert's output is multiplied by the sigmoid of a logit
            of its own.
        has_row_of_corrections: True if files store corrections as a matrix of one row.
        takes_turns: True if rows of the gate and of the up-projection alternate in the files.
        is_transposed: True if tensors of all experts have their matrices as ``[in, out]``.
        is_flat: True if tensors of all experts have two axes: matrices lie one below the other,
            second projections as ``[in, out]``.
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
