"""A processor that breaks the scores is found out and named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from asyncgen.errors import InvalidScoresError
from asyncgen.generation.logits.bans import SuppressTokensLogitsProcessor
from asyncgen.generation.logits.base import LogitsProcessor, LogitsProcessorList
from asyncgen.generation.logits.checked_processors import CheckedProcessors, raise_named
from asyncgen.generation.logits.filters import MinPLogitsWarper, TemperatureLogitsWarper
from tests.cases import for_each

IDS, SCORES = torch.ones(2, 3, dtype=torch.int64), torch.arange(10.0).view(2, 5)
HARMLESS = TemperatureLogitsWarper(0.5)


class Breaking(LogitsProcessor):
    """Breaks the second row at its second call, in one of several ways."""

    def __init__(self, how: str, in_place: bool = False) -> None:
        self.how, self.in_place, self.calls = how, in_place, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Any:
        self.calls += 1
        if self.calls < 2:
            return scores
        scores = scores if self.in_place else scores.clone()
        if self.how == "row":
            return scores[:1]
        if self.how == "vocabulary":
            return scores[:, :2]
        if self.how == "none":
            return None
        if self.how == "sparse":
            return scores.to_sparse()
        if self.how == "meta":
            return scores.to("meta")
        if self.how == "whole":
            return scores.long()
        scores[1] = {"nan": torch.nan, "banned": -torch.inf}[self.how]
        return scores


@for_each("in_place", [False, True])
@for_each("how", ["row", "vocabulary", "none", "sparse", "meta", "whole", "nan", "banned"])
@for_each("place", [0, 1, 2])
def test_a_processor_of_the_user_is_named_at_once(how: str, in_place: bool, place: int) -> None:
    processors = CheckedProcessors([HARMLESS, MinPLogitsWarper(0.1)])
    processors.insert(place, Breaking(how, in_place))
    processors(IDS, SCORES.clone())
    with pytest.raises(InvalidScoresError, match="Breaking") as caught:
        processors(IDS, SCORES.clone())
    assert caught.value.processor == "Breaking"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_token_of_plus_infinity_is_demanded(dtype: torch.dtype) -> None:
    def demanding(input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[1, 2] = scores[1, 4] = torch.inf
        return scores

    processors = CheckedProcessors([HARMLESS, demanding, MinPLogitsWarper(0.1)])
    scores = processors(IDS, SCORES.to(dtype))
    assert scores.dtype == dtype
    assert scores[1].tolist() == [-torch.inf, -torch.inf, 0, -torch.inf, 0]
    assert int(scores[0].argmax()) == 4  # a row without is as it was


def test_forced_row_does_not_hide_a_broken_row() -> None:
    def both(input_ids: Tensor, scores: Tensor) -> Tensor:
        scores[0, 1], scores[1] = torch.inf, -torch.inf
        return scores

    with pytest.raises(InvalidScoresError, match="both"):
        CheckedProcessors([both])(IDS, SCORES.clone())


def test_a_function_has_its_name() -> None:
    def half(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores[:, :2]

    with pytest.raises(InvalidScoresError, match=r"half returned scores of shape \[2, 2\]"):
        CheckedProcessors([half])(IDS, SCORES)


@pytest.mark.parametrize("user", [False, True])
def test_a_built_in_one_is_found_by_running_them_again(user: bool) -> None:
    everything = SuppressTokensLogitsProcessor(list(range(5)))
    processors = CheckedProcessors([HARMLESS, everything, MinPLogitsWarper(0.1)])
    if user:
        processors.append(lambda input_ids, scores: scores)
        with pytest.raises(InvalidScoresError) as caught:
            processors(IDS, SCORES)
        found: InvalidScoresError | None = caught.value
    else:
        processors(IDS, SCORES)
        found = processors.culprit()
    assert found is not None
    assert found.processor == "SuppressTokensLogitsProcessor"
    error = FloatingPointError("no token")
    with pytest.raises(InvalidScoresError, match="SuppressTokens") as raised:
        raise_named(processors, error)
    assert raised.value.__cause__ is error


def test_error_names_the_model_with_invalid_logits() -> None:
    processors = CheckedProcessors([HARMLESS, Breaking("nan")])
    with pytest.raises(InvalidScoresError, match="the model's logits") as caught:
        processors(IDS, SCORES / 0)
    assert caught.value.processor is None


def test_two_together() -> None:
    processors = CheckedProcessors(
        [lambda ids, scores: scores.index_fill(1, torch.arange(4), -torch.inf)]
    )
    processors.append(SuppressTokensLogitsProcessor([4]))
    processors(IDS, SCORES)
    found = processors.culprit()
    assert found is not None
    assert found.processor is None
    assert "together" in str(found)


def test_without_a_call_or_a_check_the_error_names_no_processor() -> None:
    error = FloatingPointError("no token")
    assert CheckedProcessors([HARMLESS]).culprit() is None
    plain = LogitsProcessorList([HARMLESS])
    for processors in (CheckedProcessors(), plain):
        with pytest.raises(InvalidScoresError, match="no token") as caught:
            raise_named(processors, error)
        assert caught.value.__cause__ is error and caught.value.processor is None


def test_built_in_processors_cost_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(scores: Tensor) -> bool:
        raise AssertionError

    monkeypatch.setattr("asyncgen.generation.logits.checked_processors._is_usable", fail)
    CheckedProcessors([HARMLESS, MinPLogitsWarper(0.1)])(IDS, SCORES)
