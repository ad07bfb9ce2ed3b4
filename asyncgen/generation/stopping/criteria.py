"""Stopping criteria: when a row of a generation ends.

A criterion looks at the ids so far and answers for every row. `CancelCriteria` lives in its own
module, free of torch; stop strings are matched in `stop_strings`.
"""

from __future__ import annotations

import inspect
import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError, InWords, shorten
from asyncgen.generation.config.checks import check_made_once
from asyncgen.generation.config.rules import Range, require
from asyncgen.generation.logits.base import check_number, check_share
from asyncgen.generation.stopping.stop_strings import StopStringMatcher
from asyncgen.runtime.exact_values import plain
from asyncgen.runtime.plain_values import runs_user_code
from asyncgen.runtime.transfer import plain_tensor
from asyncgen.runtime.user_code import run_user_code
from asyncgen.types import NEVER_IDS

if TYPE_CHECKING:
    from asyncgen.generation.config import GenerationConfig

_logger = logging.getLogger("asyncgen.generation")


class StoppingCriteria(ABC):
    """Decides after every step which rows end.

    Scores come as documented: ``generate`` gives those of all steps, a tuple of [B, V], where it is
    called with ``return_dict_in_generate=True, output_scores=True``, and else ``None``. A stream
    gives the newest, [1, V].
    """

    @abstractmethod
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Answer for every row.

        Args:
            input_ids: Token ids so far, the newest included, int64 [B, T].
            scores: Processed scores, a tuple of [B, V], one for each step, or as above.
            kwargs: Reserved.

        Returns:
            Bool [B] or [B, 1]: True for rows that end.
        """


class StoppingCriteriaList(list[Callable[..., Any]]):
    """Criteria of which any ends a row."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Ask all criteria.

        Args:
            input_ids: Token ids so far, int64 [B, T].
            scores: Handed on to every criterion, see `StoppingCriteria`.
            kwargs: Likewise.

        Returns:
            Bool [B]: True for rows that any criterion ends.

        Raises:
            InvalidRequestError: A criterion answers for other rows, or no truth values.
        """
        rows = input_ids.shape[0]
        done = torch.zeros(rows, dtype=torch.bool, device=input_ids.device)
        for criterion in self:
            if runs_user_code(criterion):
                verdict = run_user_code(_ask, criterion, input_ids, scores, **kwargs)
            else:
                verdict = _ask(criterion, input_ids, scores, **kwargs)
            done |= verdict.to(input_ids.device)
        return done

    @property
    def max_length(self) -> int | None:
        """Length of the first `MaxLengthCriteria`, or None."""
        for criterion in self:
            if isinstance(criterion, MaxLengthCriteria):
                return criterion.max_length
        return None


def _ask(criterion: Callable[..., Any], input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
    """Return the answer of a criterion as a plain tensor, bool [B] or a single one.

    Raises:
        InvalidRequestError: It is no truth values, or for other rows.
    """
    rows = input_ids.shape[0]
    found = plain_tensor(criterion(input_ids, scores, **kwargs))
    if isinstance(found, int) or hasattr(found, "__array__") and not isinstance(found, Tensor):
        found = torch.as_tensor(found, device="cpu")
    is_function = inspect.isroutine(criterion)
    name = criterion.__qualname__ if is_function else type(criterion).__name__
    if not isinstance(found, Tensor):
        if inspect.iscoroutine(found):
            found.close()
        raise _answer_error(name, shorten(found), rows)
    if found.shape not in ((), (1,), (rows,), (rows, 1)):
        raise _answer_error(name, str([*found.shape]), rows)
    if found.is_floating_point() or found.is_complex() or found.is_meta:
        raise _answer_error(name, f"{found.dtype} on {found.device}", rows)
    return found.reshape(-1).bool()


def _answer_error(name: str, answer: str, rows: int) -> InvalidRequestError:
    allowed = f"there are {rows} rows; answer a bool tensor [{rows}], or a bool"
    return InvalidRequestError(
        "stopping_criteria", InWords(f"{name} that answers {answer}"), allowed
    )


class MaxLengthCriteria(StoppingCriteria):
    """Ends all rows at a length, the prompt included."""

    def __init__(self, max_length: int, max_position_embeddings: int | None = None) -> None:
        """Keep the length.

        Args:
            max_length: Tokens of prompt and output.
            max_position_embeddings: What the model was made for; generating on beyond it is
                logged as a warning.

        Raises:
            InvalidRequestError: One of them is no whole number of at least 0.
        """
        self.max_length = _length("max_length", max_length)
        if max_position_embeddings is not None:
            max_position_embeddings = _length("max_position_embeddings", max_position_embeddings)
        self.max_position_embeddings = max_position_embeddings
        self._warned = False

    def __call__(self, input_ids: Tensor, scores: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Compare the length; ids are int64 [B, T]. Returns bool [B]."""
        length = input_ids.shape[-1]
        done = length >= self.max_length
        limit = self.max_position_embeddings
        if limit is not None and not done and length >= limit and not self._warned:
            self._warned = True
            _logger.warning(
                "the sequence is longer than the %d positions the model was made for; expect"
                " errors or poor text",
                limit,
            )
        return _for_all(done, input_ids)


class MaxTimeCriteria(StoppingCriteria):
    """Ends all rows after some time."""

    def __init__(
        self,
        max_time: float,
        initial_timestamp: float | None = None,
        *,
        initial_time: float | None = None,
    ) -> None:
        """Start the clock.

        Args:
            max_time: Seconds.
            initial_timestamp: When the time began, as `time.time` tells it; now by default. It is
                read against the wall clock once, here; from then on a clock counts that is never
                set.
            initial_time: The documented spelling of the same.

        Raises:
            InvalidRequestError: Both spellings are given and disagree, or one of them is no number.
        """
        if initial_time is not None and initial_timestamp not in (None, initial_time):
            raise InvalidRequestError(
                "initial_time",
                initial_time,
                f"`initial_timestamp` is {initial_timestamp!r}; pass one of them",
            )
        self.max_time = check_number("max_time", max_time)
        initial_timestamp = initial_time if initial_timestamp is None else initial_timestamp
        if initial_timestamp is None:
            initial_timestamp = time.time()
        self.initial_timestamp = check_number("initial_timestamp", initial_timestamp)

    @property
    def initial_timestamp(self) -> float:
        """When the time began, as `time.time` told it."""
        return self._initial_timestamp

    @initial_timestamp.setter
    def initial_timestamp(self, timestamp: float) -> None:
        self._initial_timestamp = timestamp
        self._begun = time.monotonic() - (time.time() - timestamp)

    @property
    def deadline(self) -> float:
        """When the time is over, by `time.monotonic`."""
        return self._begun + self.max_time

    def __call__(self, input_ids: Tensor, scores: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Look at the clock; ids are int64 [B, T]. Returns bool [B]."""
        return _for_all(time.monotonic() - self._begun > self.max_time, input_ids)


class EosTokenCriteria(StoppingCriteria):
    """Ends a row at an end-of-sequence token.

    Attributes:
        eos_token_id: The ids, int64 [N].
    """

    def __init__(self, eos_token_id: int | list[int] | Tensor) -> None:
        """Keep the ids.

        Args:
            eos_token_id: One id, a list, or a tensor of any shape.

        Raises:
            TypeError: There is something else than integers in it.
        """
        if isinstance(eos_token_id, NEVER_IDS):
            raise TypeError(f"{shorten(eos_token_id)}: token ids must be integers")
        if isinstance(eos_token_id, Tensor):
            ids = eos_token_id.flatten()
        else:
            ids = torch.as_tensor(eos_token_id, device="cpu").flatten()
        if len(ids) and (ids.is_floating_point() or ids.dtype is torch.bool):
            raise TypeError(f"`eos_token_id` is {eos_token_id!r}: must be token ids")
        self.eos_token_id = ids.long()

    def __call__(self, input_ids: Tensor, scores: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Look at the newest token; ids are int64 [B, T]. Returns bool [B]."""
        if self.eos_token_id.device != input_ids.device:
            self.eos_token_id = self.eos_token_id.to(input_ids.device)
        return (input_ids[:, -1:] == self.eos_token_id).any(-1)  # [B, N] -> [B]


class StopStringCriteria(StoppingCriteria):
    """Ends a row when a stop string appears, the newest token taking part in it.

    A stop string may begin and end inside of tokens, and its characters may be spread over
    several byte-level tokens. One that appeared earlier, with newer tokens after it, does not
    count.
    """

    def __init__(self, tokenizer: Any, stop_strings: str | list[str]) -> None:
        """Prepare the strings.

        Args:
            tokenizer: A tokenizer of this package, of transformers, or of tokenizers.
            stop_strings: One string or several, none of them empty.

        Raises:
            InvalidRequestError: There is no string, or an empty one.
        """
        self.stop_strings = (stop_strings,) if isinstance(stop_strings, str) else (*stop_strings,)
        self._matcher = StopStringMatcher(tokenizer, self.stop_strings)

    def __call__(self, input_ids: Tensor, scores: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Look at the newest tokens; ids are int64 [B, T]. Returns bool [B]."""
        reach = self._matcher.reach
        matches = [
            self._matcher.ends_with_stop(tail, row, input_ids)
            for row, tail in enumerate(input_ids[:, -reach:].tolist())
        ]
        return torch.tensor(matches, dtype=torch.bool, device=input_ids.device)


class ConfidenceCriteria(StoppingCriteria):
    """Ends a row whose newest token was less probable than a threshold, as a draft should."""

    def __init__(self, assistant_confidence_threshold: float) -> None:
        """Keep the threshold, from 0 (never ends) to 1.

        Raises:
            InvalidRequestError: It is out of range.
        """
        name = "assistant_confidence_threshold"
        self.assistant_confidence_threshold = check_share(name, assistant_confidence_threshold)

    def __call__(
        self, input_ids: Tensor, scores: Tensor | Sequence[Tensor] | None, **kwargs: Any
    ) -> Tensor:
        """Look at the probability of the newest token.

        Args:
            input_ids: Token ids so far, int64 [B, T].
            scores: Scores that the newest token was picked from, [B, V], alone or as the last of
                those of all steps.
            kwargs: Reserved.

        Returns:
            Bool [B]: True for rows that end.

        Raises:
            InvalidRequestError: There are no scores.
        """
        if scores is None:
            allowed = (
                "give those of the newest token; `generate` does with "
                "`return_dict_in_generate=True, output_scores=True`"
            )
            raise InvalidRequestError("scores", None, allowed)
        newest = scores if isinstance(scores, Tensor) else scores[-1]
        probabilities = newest.float().softmax(dim=-1).gather(1, input_ids[:, -1:])
        return probabilities[:, 0] < self.assistant_confidence_threshold


def validate_stopping_criteria(
    stopping_criteria: StoppingCriteriaList, max_length: int
) -> StoppingCriteriaList:
    """Return a copy of the criteria that has a maximal length.

    Args:
        stopping_criteria: Criteria; not changed.
        max_length: Length to add where they have none. A different one they have stays, with a
            UserWarning.

    Returns:
        The copy.
    """
    criteria = copy(stopping_criteria)
    present = criteria.max_length
    if present is None:
        criteria.append(MaxLengthCriteria(max_length))
    elif present != max_length:
        warnings.warn(
            f"`max_length` is {max_length}, but a criterion ends at {present}, which counts",
            UserWarning,
            stacklevel=2,
        )
    return criteria


def build_stopping_criteria(
    config: GenerationConfig,
    *,
    tokenizer: Any = None,
    max_position_embeddings: int | None = None,
    user_criteria: StoppingCriteriaList | None = None,
) -> StoppingCriteriaList:
    """Build the criteria that a configuration asks for.

    Args:
        config: Complete configuration; what is None is off. ``max_length`` counts the prompt.
        tokenizer: Needed for ``stop_strings``.
        max_position_embeddings: What the model was made for.
        user_criteria: Come last.

    Returns:
        Length, time, stop strings, end token, then those of the user.

    Raises:
        InvalidRequestError: ``stop_strings`` without a tokenizer, or the user passed a criterion
            that the configuration makes as well.
    """
    criteria = StoppingCriteriaList()
    if config.max_length is not None:
        criteria.append(MaxLengthCriteria(config.max_length, max_position_embeddings))
    if config.max_time is not None:
        criteria.append(MaxTimeCriteria(config.max_time))
    if config.stop_strings is not None:
        if tokenizer is None:
            allowed = "needs the model's tokenizer; pass `tokenizer=`"
            raise InvalidRequestError("stop_strings", config.stop_strings, allowed)
        criteria.append(StopStringCriteria(tokenizer, config.stop_strings))
    if config.eos_token_id is not None:
        criteria.append(EosTokenCriteria(config.eos_token_id))
    check_made_once("stopping_criteria", "criterion", criteria, user_criteria or ())
    criteria.extend(user_criteria or ())
    return criteria


def _length(name: str, value: Any) -> int:
    """Return a length as an integer, as a scalar of another library holds it.

    Raises:
        InvalidRequestError: It is none.
    """
    if type(value) is not int or value < 0:
        value = plain(value)
        require(name, value, Range(0, whole=True))
    return cast("int", value)


def _for_all(done: bool, input_ids: Tensor) -> Tensor:
    return torch.full((input_ids.shape[0],), done, dtype=torch.bool, device=input_ids.device)
