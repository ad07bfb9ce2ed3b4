"""The list of processors, and how it hands arguments on."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.base import LogitsProcessor, LogitsProcessorList, check_count

IDS, SCORES = torch.zeros(1, 3, dtype=torch.int64), torch.zeros(1, 4)


class Plus(LogitsProcessor):
    """Adds a number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + self.number


class Times(LogitsProcessor):
    """Wants a further argument."""

    def __call__(self, input_ids: Tensor, scores: Tensor, factor: float = 1.0) -> Tensor:
        return scores * factor


class Needs:
    """Needs a further argument, and is no subclass."""

    def __call__(self, input_ids: Tensor, scores: Tensor, extra: float) -> Tensor:
        return scores + extra


class TakesAll:
    """Takes whatever there is."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        return scores + len(kwargs)


def double(input_ids: Tensor, scores: Tensor) -> Tensor:
    return scores * 2


def test_runs_in_order() -> None:
    processors = LogitsProcessorList([Plus(1.0), double, Plus(3.0)])
    assert processors(IDS, SCORES).tolist() == [[5.0] * 4]
    assert SCORES.tolist() == [[0.0] * 4]


def test_hands_arguments_to_those_that_want_them() -> None:
    processors = LogitsProcessorList([Plus(1.0), Times(), Needs(), TakesAll()])
    assert processors(IDS, SCORES, extra=2.0).tolist() == [[4.0] * 4]
    assert processors(IDS, SCORES, extra=2.0, factor=10.0).tolist() == [[14.0] * 4]


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ValueError, match=r"Needs needs the arguments \['extra'\]"):
        LogitsProcessorList([Needs()])(IDS, SCORES)


def test_signatures_are_inspected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fresh(Plus):
        """Not seen before."""

    calls = []
    signature = inspect.signature

    def count(target: Any) -> inspect.Signature:
        calls.append(target)
        return signature(target)

    monkeypatch.setattr(inspect, "signature", count)
    for _ in range(5):
        LogitsProcessorList([Fresh(1.0), Fresh(2.0)])(IDS, SCORES)
    assert len(calls) == 1


def test_the_base_is_abstract() -> None:
    with pytest.raises(TypeError):
        LogitsProcessor()  # type: ignore[abstract]


def test_counts() -> None:
    assert check_count("n", 0, least=0) == 0
    for bad in (0, -1, 1.0, "1", None):
        with pytest.raises(InvalidRequestError, match="`n` is"):
            check_count("n", bad)
