"""Criteria of users get the scores that the reference gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from tests.cases import for_each
from tests.families.arch.proofs import make_pair

if TYPE_CHECKING:
    from torch import Tensor

pytest.importorskip("transformers")

IDS = torch.tensor([[5, 17, 3], [9, 21, 80]])
ASKED: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True}
CALLS: list[dict[str, Any]] = [
    {"do_sample": False},
    {"do_sample": True, "top_k": 7, "repetition_penalty": 1.4},
    {"num_beams": 3, "do_sample": False},
    {"num_beams": 2, "do_sample": True, "top_k": 0},
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    pair = make_pair("llama", tmp_path_factory.mktemp("llama"))
    return pair.ours, pair.theirs


class Recording:
    """Keeps what it is told, and ends nothing."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.told.append(scores)
        return torch.zeros(len(input_ids), dtype=torch.bool)


def told(model: Any, ids: Tensor, **call: Any) -> list[Any]:
    recording = Recording()
    torch.manual_seed(0)
    model.generate(
        ids, max_new_tokens=4, stopping_criteria=StoppingCriteriaList([recording]), **call
    )
    return recording.told


@for_each("call", CALLS)
def test_scores_of_all_steps_are_told_where_they_are_asked_for(
    call: dict[str, Any], models: tuple[Any, Any]
) -> None:
    found, expected = (told(model, IDS, **ASKED, **call) for model in models)
    # The reference asks beams in the last step as well, whatever they say.
    assert len(found) in (len(expected), len(expected) - 1)
    for one, other in zip(found, expected, strict=False):
        assert isinstance(one, tuple) and isinstance(other, tuple)
        assert len(one) == len(other)
        for step, wanted in zip(one, other, strict=True):
            torch.testing.assert_close(step, wanted, atol=1e-4, rtol=1e-4)


@for_each("asked", [{}, {"return_dict_in_generate": True}, {"output_scores": True}])
def test_no_scores_are_told_where_nobody_asked(
    asked: dict[str, Any], models: tuple[Any, Any]
) -> None:
    for call in CALLS:
        assert {*told(models[0], IDS, **asked, **call)} == {None}
    assert {*told(models[1], IDS, **asked, **CALLS[0])} == {None}


def test_drafts_are_told_a_score_for_every_token(models: tuple[Any, Any]) -> None:
    ours, theirs = models
    call: dict[str, Any] = {"prompt_lookup_num_tokens": 2, "do_sample": False, **ASKED}
    ids = torch.tensor([[5, 17, 3, 5, 17]])
    found, expected = told(ours, ids, **call), told(theirs, ids, **call)
    assert [len(each) for each in found] == [1, 2, 3, 4]  # the reference asks once a draft
    for step, wanted in zip(found[-1], expected[-1], strict=True):
        torch.testing.assert_close(step, wanted, atol=1e-4, rtol=1e-4)
    assert {*told(ours, ids, **call | {"output_scores": False})} == {None}


def test_a_criterion_reads_them(models: tuple[Any, Any]) -> None:
    """Ends at a score that is not the largest so far, as code of the documents may."""

    def falls(input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        best = torch.stack(scores).amax(-1)
        return best[-1] < best.amax(0)

    call: dict[str, Any] = {"do_sample": False, "stopping_criteria": [falls]}
    found, expected = (
        model.generate(IDS[:1], max_new_tokens=12, **call, **ASKED).sequences for model in models
    )
    assert torch.equal(found, expected) and found.shape[1] < 15
    low = asyncgen.ConfidenceCriteria(0.0)
    call |= {"max_new_tokens": 3, "stopping_criteria": [low]}
    assert models[0].generate(IDS, **ASKED, **call).sequences.shape == (2, 6)
    with pytest.raises(InvalidRequestError, match="output_scores=True"):
        models[0].generate(IDS, **call)


def test_verdicts_of_one_column_are_those_of_rows(models: tuple[Any, Any]) -> None:
    for rows in (1, 2):
        found = models[0].generate(
            IDS[:rows],
            max_new_tokens=4,
            do_sample=False,
            stopping_criteria=[lambda ids, scores, **_: ids[:, -1:] < 0],
        )
        assert found.shape == (rows, 7)
    with pytest.raises(InvalidRequestError, match=r"answers \[3\].*there are 2 rows"):
        models[0].generate(
            IDS, stopping_criteria=[lambda *_, **__: torch.zeros(3)], max_new_tokens=2
        )


async def later(*_: Any, **__: Any) -> bool:
    return True


@for_each(
    "answer, said",
    [
        (None, "None"),
        ([True], r"\[True\]"),
        ("yes", "'yes'"),
        (0.5, "0.5"),
        (torch.ones(2), r"torch.float32 on cpu"),
        (torch.ones(2, dtype=torch.bool, device="meta"), "torch.bool on meta"),
    ],
)
def test_a_verdict_that_is_no_truth_value_is_refused_by_name(
    models: tuple[Any, Any], answer: Any, said: str
) -> None:
    def mine(ids: Any, scores: Any, **_: Any) -> Any:
        return answer

    with pytest.raises(
        InvalidRequestError, match=rf"mine that answers {said}.*a bool tensor \[2\]"
    ):
        models[0].generate(IDS, stopping_criteria=[mine], max_new_tokens=2)


def test_a_criterion_that_is_a_coroutine_is_refused_by_name(models: tuple[Any, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="later that answers <coroutine"):
        models[0].generate(IDS, stopping_criteria=[later], max_new_tokens=2)


@for_each(
    "answer, length",
    [
        (True, 4),
        (False, 6),
        (0, 6),
        (np.bool_(True), 4),
        (np.array([True, True]), 4),
        (torch.tensor([[1], [1]]), 4),
        (torch.tensor(True), 4),
    ],
)
def test_a_verdict_may_be_of_any_truth_values(
    models: tuple[Any, Any], answer: Any, length: int
) -> None:
    found = models[0].generate(
        IDS, stopping_criteria=[lambda *_, **__: answer], max_new_tokens=3, do_sample=False
    )
    assert found.shape[1] == length
