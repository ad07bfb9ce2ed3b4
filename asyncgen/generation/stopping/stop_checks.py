"""Decides when a row ends: the stopping criteria as plain checks where that is possible.

The four built-in criteria (end-of-sequence, length, time, cancelled) need no tensors, so they are
read out of the list once and checked on Python integers. Those that a user passed may be changed
while they are asked, and are read again after every token. Criteria written by users keep the
documented tensor signature and are called only if there are any.
"""

from __future__ import annotations

import numbers
import time
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import torch

from asyncgen.errors import InvalidRequestError, shorten
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.generation.stopping.criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
)
from asyncgen.runtime.plain_values import runs_user_code
from asyncgen.runtime.request_failure import describe
from asyncgen.runtime.transfer import plain_tensor
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor


C = TypeVar("C")

Told: TypeAlias = Literal["newest", "all"] | None
"""See `StopChecks`."""

_VALUES = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria)

_PLAIN = (*_VALUES, CancelCriteria)
"""What is checked without tensors."""


class StopChecks:
    """A list of stopping criteria, ready to be asked after every token."""

    def __init__(
        self,
        criteria: StoppingCriteriaList,
        *,
        passed: Iterable[Callable[..., Any]] | None = None,
        told: Told = "newest",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sort the criteria into plain checks and tensor calls.

        Args:
            criteria: Built-in and user criteria.
            passed: What the user passed. Built-in ones count even if they are not among the
                criteria, and as the user changes them.
            told: Scores that tensor calls get: the newest, ``[B, V]``; those of every step, as a
                tuple; or ``None``, as documented where nobody asked ``generate`` for scores.
            clock: In seconds, as `time.monotonic`, which :class:`MaxTimeCriteria` reads.
        """
        # Exact types only: a subclass may override __call__.
        self._followed = [each for each in passed or () if type(each) in _VALUES]
        theirs = set(map(id, self._followed))
        own = [each for each in criteria if type(each) in _VALUES and id(each) not in theirs]
        ends = [each.eos_token_id.tolist() for each in own if isinstance(each, EosTokenCriteria)]
        self.eos_token_ids: frozenset[int] = frozenset().union(*ends)
        lengths = [each.max_length for each in own if isinstance(each, MaxLengthCriteria)]
        self.max_length: int | None = min(lengths, default=None)
        deadlines = [each.deadline for each in own if isinstance(each, MaxTimeCriteria)]
        self._deadline: float | None = min(deadlines, default=None)
        self._own = self.eos_token_ids, lengths, deadlines
        if self._followed:
            self._follow()
        self._cancels = [each for each in criteria if type(each) is CancelCriteria]
        others = [each for each in criteria if type(each) not in _PLAIN]
        self.tensor_criteria = StoppingCriteriaList(others)
        self._told = told
        self._steps: tuple[Tensor, ...] = ()
        self._stopped: dict[int, str] = {}
        self._clock = clock

    def _follow(self) -> None:
        """Read what the criteria that the user passed say now, beside the others.

        Raises:
            InvalidRequestError: The user has given one an attribute of a wrong kind.
        """
        ids, lengths, deadlines = set(self._own[0]), [*self._own[1]], [*self._own[2]]
        for each in self._followed:
            try:
                found = run_user_code(_value_of, each) if runs_user_code(each) else _value_of(each)
            except Exception as error:
                allowed = f"attributes as its constructor sets them ({describe(error)})"
                name = type(each).__name__
                raise InvalidRequestError("stopping_criteria", name, allowed) from error
            if isinstance(each, EosTokenCriteria):
                ids.update(found)
            else:
                (lengths if isinstance(each, MaxLengthCriteria) else deadlines).append(found)
        self.eos_token_ids = frozenset(ids)
        self.max_length = min(lengths, default=None)
        self._deadline = min(deadlines, default=None)

    def stop_row(self, row: int, reason: str = "stop") -> None:
        """End a row from outside with its next token, for a reason seen in its text."""
        self._stopped[row] = reason

    def reasons(
        self, token_ids: list[int], live: list[bool], length: int, ids: Tensor, scores: Tensor
    ) -> list[str | None]:
        """Tell for every row why it ends with the token just appended.

        Args:
            token_ids: The new token of each row.
            live: Which rows had not ended before.
            length: Sequence length now, prompt and padding included.
            ids: Sequences so far, int64 ``[B, length]``.
            scores: Processed scores the tokens were picked from, float32 ``[B, V]``.

        Returns:
            One entry a row: ``"stop"``, ``"length"``, ``"time"``, ``"cancelled"``, or ``None``
            for a row that goes on or had ended before.
        """
        called = self.tensor_criteria
        others = called(ids, self._scores(scores)).tolist() if called else None
        if self._followed:
            self._follow()
        full = self.max_length is not None and length >= self.max_length
        common = "length" if full else self.interrupted()
        found: list[str | None] = []
        for row, token in enumerate(token_ids):
            stops = others is not None and others[row]
            stops = stops or token in self.eos_token_ids
            own = "stop" if stops else self._stopped.get(row)
            found.append(own or common if live[row] else None)
        return found

    def reason(self, row: int, token_id: int, length: int, *, stops: bool = False) -> str | None:
        """Tell why one live row ends with the token just appended; calls no criterion.

        Args:
            row: Which row of the request.
            token_id: The new token.
            length: Length of this row now, prompt included.
            stops: What the ``tensor_criteria`` said of this row.

        Returns:
            As an entry of :meth:`reasons`.
        """
        if self._followed:
            self._follow()
        if stops or token_id in self.eos_token_ids:
            return "stop"
        if row in self._stopped:
            return self._stopped[row]
        if self.max_length is not None and length >= self.max_length:
            return "length"
        return self.interrupted()

    def hits(
        self,
        tokens: Tensor,
        length: int,
        ids: Callable[[], Tensor],
        scores: Tensor,
        parents: Tensor | None = None,
    ) -> tuple[Tensor, str | None]:
        """Tell which of many candidates end, for strategies that weigh them against each other.

        Args:
            tokens: Newest token of each candidate, int64 ``[N]``.
            length: Their length, prompt and padding included.
            ids: Gives all ids ``[N, length]``; asked for user criteria only.
            scores: Scores of the step, ``[R, V]``.
            parents: Row of the scores that each candidate was picked from, int64 ``[N]``; ``None``:
                its own.

        Returns:
            Bool ``[N]``, and the reason that ends all of them, if there is one.
        """
        if self._followed:
            self._follow()
        full = self.max_length is not None and length >= self.max_length
        common = "length" if full else self.interrupted()
        if common is not None:
            return torch.ones_like(tokens, dtype=torch.bool), common
        ends = torch.tensor(sorted(self.eos_token_ids), dtype=tokens.dtype, device=tokens.device)
        found = torch.isin(tokens, ends)
        if self.tensor_criteria:
            found = found | self.tensor_criteria(ids(), self._scores(scores, parents))
        return found, None

    def _scores(
        self, scores: Tensor, parents: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...] | None:
        """Return what criteria are told of the scores of a step."""
        if self._told is None:
            return None
        if self._told == "newest":
            return scores if parents is None else scores[parents]
        self._steps += (scores,)
        return self._steps

    def interrupted(self) -> str | None:
        """A reason to end at once, whatever was generated: ``"cancelled"`` or ``"time"``."""
        for cancel in self._cancels:
            if cancel.flag:
                return "cancelled"
        if self._followed:
            self._follow()
        if self._deadline is not None and self._clock() > self._deadline:
            return "time"
        return None


def _value_of(criterion: Any) -> Any:
    """Return what a plain criterion ends at, in plain numbers; code of a user may run here."""
    if isinstance(criterion, EosTokenCriteria):
        return [*map(int, plain_tensor(criterion.eos_token_id).tolist())]
    is_length = isinstance(criterion, MaxLengthCriteria)
    value = plain_tensor(criterion.max_length if is_length else criterion.deadline)
    if isinstance(value, torch.Tensor):
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{shorten(value)} is no number")
    return int(value) if isinstance(value, numbers.Integral) else float(value)
