"""Pool the hidden states of a text to one vector: the mean of all, or the last one.

The states are those after the final norm. They come in chunks, beside the rows of other requests;
only their sum is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from asyncgen.errors import InvalidScoresError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.checkpoints.embedding_settings import DenseLayer
    from asyncgen.types import Pooling

_LEAST_NORM = 1e-12
"""Least divisor of a vector, so that a zero vector is not divided by zero."""


class HiddenReader(Protocol):
    """Reader of the hidden states of a text, a chunk at a time.

    Attributes:
        is_whole: Whether all tokens must be computed in one step.
        most_tokens: Most tokens of the prompt in one step; ``None`` for no limit.
        generates: Whether new tokens are asked for as well.
    """

    is_whole: bool
    most_tokens: int | None
    generates: bool

    @property
    def shares_pages(self) -> bool:
        """True if tokens in the prefix cache may stay uncomputed."""

    def wanted(self, start: int, end: int, *, is_last: bool) -> range:
        """Return the positions of a chunk whose hidden states are to be added."""

    def add(self, hidden: Tensor, start: int) -> None:
        """Add the hidden states ``[T, E]`` of positions from ``start`` on."""

    def finish(self) -> None:
        """Compute the result, once all states were added; raise if they are NaN or infinite."""


class HiddenPool:
    """Pooled hidden states of one text.

    Attributes:
        vector: The result, float32 ``[D]`` on the CPU; ``None`` before `finish`.
        is_whole: Whether all tokens must be computed in one step.
        most_tokens: ``None``, as there is no limit.
        generates: False, as no token is asked for.
    """

    def __init__(
        self,
        pooling: Pooling,
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        layers: Sequence[DenseLayer] = (),
        is_whole: bool = False,
    ) -> None:
        """Begin before the first token.

        Args:
            pooling: ``"last"`` or ``"mean"``.
            normalize: Whether to divide the vector by its Euclidean length.
            dimensions: Number of first components to keep; ``None`` for all.
            layers: Layers that the vector passes first.
            is_whole: Whether all tokens must be computed in one step, as they see later ones.
        """
        self.vector: Tensor | None = None
        self._takes_all = pooling == "mean"
        self._normalize = normalize
        self._dimensions = dimensions
        self._layers = layers
        self.is_whole = is_whole
        self.most_tokens: int | None = None
        self.generates = False
        self._count = 0
        self._sum: Tensor | None = None

    @property
    def shares_pages(self) -> bool:
        """True if tokens in the prefix cache may stay uncomputed."""
        return not self._takes_all and not self.is_whole

    def wanted(self, start: int, end: int, *, is_last: bool) -> range:
        """Return the positions of a chunk whose hidden states are to be added.

        Positions that were added before a preemption are left out.

        Args:
            start: Position of the first token of the chunk.
            end: Position behind its last one.
            is_last: Whether the text ends there.
        """
        if not self._takes_all:
            return range(end - 1, end) if is_last else range(end, end)
        assert start <= self._count, "the hidden states before this chunk were never there"
        return range(max(start, self._count), end)

    def add(self, hidden: Tensor, start: int) -> None:
        """Add the hidden states of the positions that were `wanted`, in order.

        Args:
            hidden: ``[T, E]`` of any floating dtype; not kept.
            start: Position of the first.
        """
        assert not self._takes_all or start == self._count, "a mean counts each position once"
        # In float64, so that the order of the sum does not change the float32 result.
        part = hidden.double().sum(0) if self._takes_all else hidden[-1].double()
        self._sum = part if self._sum is None else self._sum + part
        self._count += hidden.shape[0]

    def finish(self) -> None:
        """Compute the vector.

        Raises:
            InvalidScoresError: It holds NaN or infinities.
        """
        assert self._sum is not None, "no hidden state was added"
        pooled = (self._sum / self._count).cpu()
        for layer in self._layers:
            pooled = layer(pooled.float())
        pooled = pooled[: self._dimensions]
        if not bool(torch.isfinite(pooled).all()):
            raise InvalidScoresError(
                None,
                "the hidden states of this text hold NaN or infinities, so it has no embedding; "
                'compute in a wider dtype (`dtype="float32"`)',
            )
        if self._normalize:
            pooled = pooled / max(float(pooled.norm()), _LEAST_NORM)
        self.vector = pooled.float()
