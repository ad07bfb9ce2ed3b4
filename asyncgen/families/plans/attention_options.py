"""Options of one layer's attention beyond scaled products, read by every path that computes it.

A query at position i sees the key at position j with the score ``scale * q · k``. Then, in this
order: the score is capped, a slope times ``j - i`` is added, hidden keys are left out, and the
softmax counts a sink among the scores, which has no value. This module imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import TYPE_CHECKING, TypeVar

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """One layer's attention. Options that are off are ``None`` or ``False``.

    The sinks themselves are a parameter of the layer, ``[H]`` in float32, which passes them with
    its heads (`AttentionContext.attend`). Values narrower than keys are stored with zeros behind
    them, and results have the same zeros.

    Attributes:
        window: Keys that a query sees at most, itself included; ``None``: all.
        scale: Factor on the scores, not 0; ``None``: 1 / sqrt(D).
        cap: Soft cap c, above 0: a score s becomes ``c * tanh(s / c)`` (Gemma Team, "Gemma 2",
            2024, section 2).
        has_sinks: True if each query head has a learned score without a key (Xiao et al.,
            "Efficient Streaming Language Models with Attention Sinks", 2024, section 3.3).
        slopes: ALiBi: a finite slope for each query head (Press, Smith and Lewis, "Train Short,
            Test Long", 2022, section 3).
        spans_gaps: True if ``j - i`` counts the columns of a mask's gaps, not kept tokens alone.
        is_chunked: True if a query sees the keys of its chunk, not the last ones: positions 0 to
            ``window - 1``, the next ``window``, and so on.
        is_bidirectional: True if a query sees later keys too: the whole text, or those less than
            ``window`` away on either side. Such a text is computed in one piece.
    """

    window: int | None = None
    scale: float | None = None
    cap: float | None = None
    has_sinks: bool = False
    slopes: tuple[float, ...] | None = None
    spans_gaps: bool = False
    is_chunked: bool = False
    is_bidirectional: bool = False

    def __post_init__(self) -> None:
        """Refuse options that no path computes."""
        if self.scale is not None and not (self.scale and isfinite(self.scale)):
            raise InvalidRequestError(
                "scale", self.scale, "must be a finite number, not 0, or None"
            )
        if self.slopes is not None and not all(map(isfinite, self.slopes)):
            raise InvalidRequestError("slopes", self.slopes, "must be finite numbers")
        if self.window is not None and self.window < 1:
            raise InvalidRequestError("window", self.window, "must be at least 1, or None")
        if self.is_chunked and self.window is None:
            raise InvalidRequestError("is_chunked", True, "needs a window, the size of a chunk")
        if self.is_chunked and self.is_bidirectional:
            raise InvalidRequestError("is_chunked", True, "chunks are seen in one direction")
        if self.cap is not None and not 0 < self.cap < inf:
            raise InvalidRequestError("cap", self.cap, "must be above 0, or None")

    @property
    def is_plain(self) -> bool:
        """True if the softmax is that of scaled products: nothing is added to them or bends
        them."""
        return self.cap is None and self.slopes is None and not self.has_sinks

    @property
    def is_fusable(self) -> bool:
        """True if torch's fused kernels compute it: a scale and a window of the last keys."""
        return self.is_plain and not self.is_chunked and not self.is_bidirectional

    @property
    def kind(self) -> AttentionOptions:
        """The same without the scale: layers of one kind hide the same keys and lay out alike."""
        return replace(self, scale=None)

    def first_seen(self, position: int) -> int:
        """Return the position of the first key that a query at ``position`` sees."""
        if self.window is None:
            return 0
        if self.is_chunked:
            return position // self.window * self.window
        return max(position + 1 - self.window, 0)


def number_kinds(kinds: Sequence[Kind]) -> tuple[list[Kind], list[int]]:
    """List the distinct kinds of layers, and the number of each layer's kind."""
    distinct = list(dict.fromkeys(kinds))
    return distinct, [distinct.index(kind) for kind in kinds]


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Compute the slopes of ALiBi for so many heads (Press et al. 2022, section 3, and their
    footnote).

    For a power of two the slopes are ``2 ** (-8 k / heads)`` for k from 1 on; other numbers take
    those of the power of two below, then every second one of the power of two above.
    """
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * k / below) for k in range(1, below + 1)]
    slopes += [2.0 ** (-4 * k / below) for k in range(1, 2 * (heads - below), 2)]
    return tuple(slopes)
