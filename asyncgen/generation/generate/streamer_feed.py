"""Hands the ids of a call's steps to a streamer, in the documented shapes.

A streamer takes the prompts ``[B, S]``, then one id of each row ``[B]`` at a time; of a single
row also several. Rows that settle at different speeds wait here for each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from asyncgen.runtime.transfer import host_ints

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.generation.strategies.step import Step


class Streamer(Protocol):
    """Receiver of the tokens of a generation; all streamers of the documents are."""

    def put(self, value: Any, /) -> object:
        """Take token ids: the prompt `[B, S]`, then those of each step, `[B]` or of one row `[n]`.

        Called on the thread that computes: it must be quick.
        """

    def end(self) -> object:
        """Take note that generation has ended."""


class StreamerFeed:
    """One call's ids on their way to a streamer."""

    def __init__(self, streamer: Streamer, *, copies: int = 1, pad_token_id: int = 0) -> None:
        """Keep what is needed; nothing is handed over yet.

        Args:
            streamer: Gets everything.
            copies: Sequences that each prompt becomes.
            pad_token_id: Stands for rows that have ended.
        """
        self._put: Callable[[Tensor], object] = streamer.put
        self._end: Callable[[], object] = streamer.end
        self._copies = copies
        self._pad = pad_token_id
        self._waiting: list[list[int]] = []
        self._ended: list[bool] = []

    def begin(self, prompts: Tensor) -> None:
        """Hand over the prompts, int64 ``[B, S]``, one for each sequence that comes of them."""
        self._put(prompts.repeat_interleave(self._copies, dim=0).cpu())

    def step(self, step: Step) -> None:
        """Hand over what a step settled, as far as every row has it."""
        if step.prompt is not None:
            self._put(step.prompt.cpu())
        elif step.tokens is not None:
            self._put(step.tokens.cpu())
        elif len(step.token_ids) > 1:
            self._wait(step)
        elif step.token_ids[0]:
            self._put(host_ints(step.token_ids[0]))

    def end(self) -> None:
        """Tell the streamer that everything was handed over."""
        self._end()

    def _wait(self, step: Step) -> None:
        if not self._waiting:
            self._waiting = [[] for _ in step.token_ids]
            self._ended = [False] * len(step.token_ids)
        for row, token_ids in enumerate(step.token_ids):
            self._waiting[row] += token_ids
            if step.reasons and step.reasons[row] is not None:
                self._ended[row] = True
        lengths = [len(waiting) for waiting in self._waiting]
        going_on = [length for length, ended in zip(lengths, self._ended, strict=True) if not ended]
        ready = min(going_on) if going_on else max(lengths)
        for place in range(ready):
            column = [row[place] if place < len(row) else self._pad for row in self._waiting]
            self._put(host_ints(column))
        self._waiting = [row[ready:] for row in self._waiting]
