"""A list of processors that finds out which of them broke the scores.

The built-in processors cost no check of their own: only when no token can be picked are they run
once more, one by one. What users wrote may keep state, so it is looked at after every call.
"""

from __future__ import annotations

import inspect
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from asyncgen.errors import InvalidScoresError, class_module, class_name
from asyncgen.generation.logits.base import LogitsProcessor, LogitsProcessorList, definition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from asyncgen.generation.logits.followed import FollowedProcessor


_OURS = "asyncgen.generation."


class CheckedProcessors(LogitsProcessorList):
    """Runs processors; an error names the one whose scores cannot be used.

    Attributes:
        followed: Those that a user may change while they run, by their numbers in the list, where
            an object of the user may stand behind another that runs.
    """

    followed: Mapping[int, FollowedProcessor] = MappingProxyType({})
    _begun: tuple[Tensor, Tensor, dict[str, Any]] | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        """Run all processors.

        Args:
            input_ids: Token ids so far, int64 [B, T].
            scores: Scores of the next token, [B, V].
            kwargs: Arguments for processors that ask for more.

        Returns:
            Processed scores, [B, V].

        Raises:
            InvalidScoresError: A processor returned something else than scores of this shape, or
                one that a user wrote NaN, or -inf for every token of a row. With +inf it demands
                a token: all others of the row are banned.
            ValueError: A processor needs an argument that ``kwargs`` does not have.
        """
        self.begin(input_ids, scores, kwargs)
        for number in range(len(self)):
            scores = self.run_one(number, input_ids, scores)
        return scores

    def begin(
        self, input_ids: Tensor, scores: Tensor, kwargs: dict[str, Any] | None = None
    ) -> None:
        """Take note of what a step begins with, for a caller that runs processors one by one.

        Args:
            input_ids: Token ids so far, int64 [B, T].
            scores: Scores before all processors, [B, V].
            kwargs: Arguments for processors that ask for more.
        """
        self._begun = input_ids, scores, kwargs or {}

    def run_one(self, number: int, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Run one processor of a step that has begun; all of them must run, in order.

        Args:
            number: Its place in the list.
            input_ids: Token ids so far, int64 [B, T].
            scores: What the processors before it made, [B, V].

        Returns:
            What it made, [B, V].

        Raises:
            InvalidScoresError: As a call does.
            ValueError: It needs an argument that there is not.
        """
        assert self._begun is not None
        if number in self.followed:
            self.followed[number].follow()
        processor = self[number]
        foreign = not _is_built_in(processor)
        checked = number > 0 and not _is_built_in(self[number - 1])
        if foreign and not checked and not _is_usable(scores):
            raise self._blame(number)
        wanted, device = (input_ids.shape[0], scores.shape[-1]), scores.device
        scores = self._run(processor, input_ids, scores, self._begun[2])
        _check_scores(processor, scores, wanted, device)
        if foreign and not _is_usable(scores):
            return _keep_demanded_tokens(processor, scores)
        return scores

    def culprit(self) -> InvalidScoresError | None:
        """Find out why no token could be picked from the last call's scores.

        Returns:
            An error that names the processor or the model; None where all scores are fine, or
            there was no call.
        """
        return self._blame(len(self)) if self._begun is not None else None

    def _blame(self, count: int) -> InvalidScoresError:
        """Run the first ``count`` processors again, one by one, up to the one that breaks."""
        assert self._begun is not None
        input_ids, scores, kwargs = self._begun
        if not _is_usable(scores):
            return InvalidScoresError(
                None, "the model's logits hold NaN or infinities; look at its weights and dtype"
            )
        for processor in self[:count]:
            if not _is_built_in(processor):
                continue  # it was looked at when it ran
            scores = self._run(processor, input_ids, scores, kwargs)
            if not _is_usable(scores):
                return _no_token_error(processor)
        return InvalidScoresError(
            None,
            "together the logits processors ban every token, or make NaN; leave one of them out",
        )


def raise_named(processors: LogitsProcessorList, error: FloatingPointError) -> NoReturn:
    """Name the processor behind a failure to pick a token, where it can be found.

    Args:
        processors: Those of the request.
        error: What picking raised.

    Raises:
        InvalidScoresError: With the name, if there is one.
    """
    if isinstance(processors, CheckedProcessors) and not isinstance(error, InvalidScoresError):
        named = processors.culprit()
        if named is not None:
            raise named from error
    if isinstance(error, InvalidScoresError):
        raise error
    raise InvalidScoresError(None, str(error)) from error


def _is_built_in(processor: object) -> bool:
    if definition_of(processor) is not None:  # then it may run where no call is looked at
        return True
    return isinstance(processor, LogitsProcessor) and class_module(processor).startswith(_OURS)


def _is_usable(scores: Tensor) -> bool:
    """Return whether every row has a finite best score; a NaN anywhere in a row makes it False."""
    return bool(scores.amax(-1).isfinite().all())


def _check_scores(
    processor: Callable[..., Any], scores: object, wanted: tuple[int, int], device: torch.device
) -> None:
    name = _name(processor)
    if not isinstance(scores, torch.Tensor):
        kind = class_name(scores)
        raise InvalidScoresError(name, f"{name} returned {kind}; it must return a tensor of scores")
    if (*scores.shape,) != wanted:
        shapes = f"{[*scores.shape]} instead of {[*wanted]}"
        raise InvalidScoresError(
            name, f"{name} returned scores of shape {shapes}; it must keep rows and vocabulary"
        )
    is_dense = scores.layout == torch.strided and scores.is_floating_point()
    if scores.device != device or not is_dense:
        kind = f"{scores.dtype}, {scores.layout} on {scores.device}"
        raise InvalidScoresError(
            name, f"{name} returned scores of {kind}; it must return dense numbers on {device}"
        )


def _keep_demanded_tokens(processor: Callable[..., Any], scores: Tensor) -> Tensor:
    """Leave nothing but the tokens of +inf in the rows that have any: they are to be taken.

    Raises:
        InvalidScoresError: Another row has no token to pick.
    """
    best = scores.amax(-1, keepdim=True)  # NaN where a row holds any
    wanted = best.isposinf()
    if not bool((wanted | best.isfinite()).all()):
        raise _no_token_error(processor)
    alone = torch.full_like(scores, -torch.inf).masked_fill_(scores.isposinf(), 0.0)
    return torch.where(wanted, alone, scores)


def _no_token_error(processor: Callable[..., Any]) -> InvalidScoresError:
    name = _name(processor)
    return InvalidScoresError(
        name,
        f"{name} left a row without a token to pick: its scores hold NaN, or all are"
        " -inf; a processor must leave at least one finite score, or +inf, and no NaN",
    )


def _name(processor: Callable[..., Any]) -> str:
    return processor.__qualname__ if inspect.isroutine(processor) else class_name(processor)
