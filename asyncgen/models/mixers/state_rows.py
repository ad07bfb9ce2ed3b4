"""The rows of a forward pass as layers with states compute them.

A row is the tokens of one text that are computed now. Rows with the same number of tokens are
computed together: padding never meets a state.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Protocol

import torch

from asyncgen.runtime.transfer import host_ints, to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a pass with the same number of tokens.

    Attributes:
        count: Number of rows, R.
        length: Tokens of each, S.
        numbers: Numbers of the rows in the pass, int64 ``[R]``; ``None``: all of them, in order.
        tokens: Numbers of their tokens among the pass's N, row after row, int64 ``[R * S]``;
            ``None``: all of them, in order.
    """

    count: int
    length: int
    numbers: Tensor | None
    tokens: Tensor | None


class StateContext(Protocol):
    """Gives the states of a pass's rows, and stores the new ones.

    Attributes:
        compiled: See `AttentionContext`; ``None``.
        rows: Rows of the pass, by number of tokens; rows without any are in none.
        native: States and rows as our own kernels see them; ``None``: torch computes.
        order: For those kernels the pass's tokens that belong to a row, row after row, int64;
            ``None``: all of them, in order.
    """

    compiled: Any | None
    native: Any | None
    order: Tensor | None

    @property
    def rows(self) -> Sequence[Rows]: ...

    def read(self, layer: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """Read what a layer kept of some rows.

        Returns:
            The last inputs of its convolution, ``[R, W, C]`` in the model's dtype, and its state,
            ``[R, H, P, N]`` float32. Do not write to them.
        """

    def write(self, layer: int, rows: Rows, window: Tensor, state: Tensor) -> None:
        """Store both, as they are behind the last tokens of these rows."""

    def keep(self, layer: int) -> None:
        """Store what our kernels left in a layer's states."""


def sort_rows(
    counts: Sequence[int], places: Sequence[Sequence[int]] | None, device: torch.device
) -> list[Rows]:
    """Group rows by their number of tokens.

    Args:
        counts: Tokens of each row; there may be none.
        places: For each row the numbers of its tokens among those of the pass; ``None``: one row
            lies behind the other.
        device: Device of the model.
    """
    if places is None and len(set(counts)) == 1:
        return [Rows(len(counts), counts[0], None, None)]
    if places is None:
        places = [range(end - n, end) for n, end in zip(counts, accumulate(counts), strict=True)]
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for number, count in enumerate(counts):
        if count:
            alike[count].append(number)

    def tensor(numbers: list[int]) -> Tensor:
        return to_device(host_ints(numbers), device)

    return [
        Rows(
            len(numbers),
            count,
            tensor(numbers),
            tensor(list(chain.from_iterable(places[number] for number in numbers))),
        )
        for count, numbers in alike.items()
    ]


def through_rows(
    states: StateContext,
    layer: int,
    inputs: Tensor,
    width: int,
    advance: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
) -> Tensor:
    """Send the tokens of a pass through a layer's states.

    Args:
        states: Gives and stores them.
        layer: Number of the layer.
        inputs: Inputs of all tokens, ``[N, I]``.
        width: Features of a result.
        advance: Takes inputs ``[R, S, I]``, a window and a state as `StateContext.read` gives them,
            and returns results ``[R, S, width]`` and the new window and state.

    Returns:
        Results ``[N, width]`` float32; zero for tokens that belong to no row.
    """
    found: Tensor | None = None
    for rows in states.rows:
        part = inputs if rows.tokens is None else inputs.index_select(0, rows.tokens)
        window, state = states.read(layer, rows)
        some, window, state = advance(part.view(rows.count, rows.length, -1), window, state)
        states.write(layer, rows, window, state)
        some = some.reshape(-1, width)
        if rows.tokens is None:
            return some
        if found is None:
            found = some.new_zeros(inputs.shape[0], width)
        found.index_copy_(0, rows.tokens, some)
    return inputs.new_zeros(inputs.shape[0], width, dtype=torch.float32) if found is None else found
