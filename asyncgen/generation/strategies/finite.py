"""Refuses to pick from scores that cannot be picked from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["require_finite"]


def require_finite(best: Tensor, position: int) -> None:
    """Check the winning scores of a step.

    Args:
        best: Highest score of each row, float32 ``[B]``; NaN where a row holds any.
        position: Position of the token, for the message.

    Raises:
        FloatingPointError: A row holds NaN, or bans every token.
    """
    if not all(map(math.isfinite, best.tolist())):
        raise FloatingPointError(
            f"the scores for position {position} hold NaN or ban every token; look at the logits "
            "processors of the request and at the model's weights"
        )
