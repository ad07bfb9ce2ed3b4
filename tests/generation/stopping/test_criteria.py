"""Stopping criteria, against transformers; the flag that ends a request from outside."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import stopping_criteria as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.stopping.cancel import CancelCriteria
from asyncgen.generation.stopping.criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    build_stopping_criteria,
    validate_stopping_criteria,
)
from asyncgen.generation.stopping.stop_checks import StopChecks
from tests.cases import for_each
from tests.generation.alike import records

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.lists(st.integers(0, 5), max_size=3))
def test_length_and_end_token(batch: int, limit: int, eos: list[int]) -> None:
    for length in range(1, 9):
        ids = torch.randint(0, 6, (batch, length))
        for ours, theirs in (
            (MaxLengthCriteria(limit), reference.MaxLengthCriteria(limit)),
            (EosTokenCriteria(eos), reference.EosTokenCriteria(eos)),
        ):
            found = ours(ids, None)
            assert found.dtype == torch.bool
            assert torch.equal(found, theirs(ids, None))


@for_each("eos", [3, [3], torch.tensor(3), torch.tensor([3]), torch.tensor([[3]])])
def test_forms_of_the_end_token(eos: Any) -> None:
    criterion = EosTokenCriteria(eos)
    assert criterion(IDS, None).tolist() == [True, False]
    assert criterion.eos_token_id.tolist() == [3]


@pytest.mark.parametrize("eos", [1.5, [1.5], True, torch.tensor([1.5])])
def test_the_end_token_must_be_an_id(eos: Any) -> None:
    with pytest.raises(TypeError, match="token ids"):
        EosTokenCriteria(eos)


@for_each(("limit", "age"), [(1.0, 2.0), (1.0, 0.5), (-1.0, 0.0), (0.0, 1.0), (60, None)])
def test_time_is_that_of_the_reference(limit: float, age: float | None) -> None:
    """A criterion without a beginning counts from when it is made."""
    begun = None if age is None else time.time() - age
    for ours, theirs in (
        (MaxTimeCriteria(limit, begun), reference.MaxTimeCriteria(limit, begun)),
        (
            MaxTimeCriteria(max_time=limit, initial_timestamp=begun),
            reference.MaxTimeCriteria(max_time=limit, initial_timestamp=begun),
        ),
    ):
        assert torch.equal(ours(IDS, None), theirs(IDS, None))


def test_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MaxTimeCriteria(-1.0)(IDS, None).tolist() == [True, True]
    assert MaxTimeCriteria(1.0, initial_timestamp=time.time() - 2)(IDS, None).all()
    assert MaxTimeCriteria(1.0, initial_time=time.time() - 2)(IDS, None).all()
    with pytest.raises(InvalidRequestError, match="initial_time.*pass one of them"):
        MaxTimeCriteria(1.0, 3.0, initial_time=4.0)
    criterion = MaxTimeCriteria(5.0)
    assert not criterion(IDS, None).any()
    later = time.monotonic() + 6
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert criterion(IDS, None).all()


@for_each("shift", [-3600.0, 3600.0])
@for_each("age", [None, 2.0])
def test_a_clock_that_is_set_changes_no_limit(shift: float, age: float | None) -> None:
    """A beginning in wall time is read once, when the criterion is made."""
    with pytest.MonkeyPatch.context() as patch:
        begun = None if age is None else time.time() - age
        criterion = MaxTimeCriteria(5.0, initial_timestamp=begun)
        checks = StopChecks(StoppingCriteriaList([criterion]))
        wall, steady = time.time, time.monotonic
        patch.setattr(time, "time", lambda: wall() + shift)
        assert not criterion(IDS, None).any()
        assert checks.interrupted() is None
        later = steady() + 6 - (age or 0)
        patch.setattr(time, "monotonic", lambda: later)
        assert criterion(IDS, None).all()
    assert criterion.initial_timestamp <= time.time()


def test_a_beginning_that_is_set_later_counts() -> None:
    criterion = MaxTimeCriteria(5.0)
    criterion.initial_timestamp = time.time() - 6
    assert criterion(IDS, None).all()


def test_more_positions_than_the_model_has_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    criterion = MaxLengthCriteria(9, max_position_embeddings=3)
    with records("asyncgen.generation"):
        for _ in range(3):
            assert not criterion(IDS, None).any()
    assert caplog.text.count("longer than the 3 positions") == 1


def test_a_list_is_an_or() -> None:
    class Row(StoppingCriteria):
        """Ends one row."""

        def __call__(self, input_ids: Tensor, scores: Tensor | None, **kwargs: Any) -> Tensor:
            return torch.arange(len(input_ids)) == kwargs.get("row", 0)

    assert StoppingCriteriaList()(IDS, None).tolist() == [False, False]
    criteria = StoppingCriteriaList([Row(), EosTokenCriteria(9), MaxLengthCriteria(8)])
    assert criteria(IDS, None).tolist() == [True, False]
    assert criteria(IDS, None, row=1).tolist() == [False, True]
    assert criteria.max_length == 8
    assert StoppingCriteriaList([Row()]).max_length is None


@pytest.mark.parametrize("verdict", [True, False, torch.tensor(True), torch.tensor([1, 0])])
def test_plain_functions_and_plain_answers(verdict: Any) -> None:
    found = StoppingCriteriaList([lambda *_, **__: verdict])(IDS, None)
    theirs = reference.StoppingCriteriaList([lambda *_, **__: verdict])(IDS, None)
    assert found.dtype == torch.bool
    assert torch.equal(found, theirs.bool())


def test_the_base_is_abstract() -> None:
    with pytest.raises(TypeError):
        StoppingCriteria()  # type: ignore[abstract]


def test_cancel_ends_every_row() -> None:
    cancel = CancelCriteria()
    criteria = StoppingCriteriaList([cancel])
    assert criteria(IDS, None).tolist() == [False, False]
    cancel.set()
    assert criteria(IDS, None).tolist() == [True, True]


@pytest.mark.filterwarnings("ignore:.*max_length")
def test_validation_adds_a_length() -> None:
    for make in (list, lambda: [MaxLengthCriteria(5)], lambda: [EosTokenCriteria(2)]):
        criteria = StoppingCriteriaList(make())
        before = len(criteria)
        checked = validate_stopping_criteria(criteria, 7)
        assert checked is not criteria
        assert len(criteria) == before
        assert checked.max_length == (criteria.max_length or 7)


def test_validation_warns_of_another_length() -> None:
    criteria = StoppingCriteriaList([MaxLengthCriteria(5)])
    validate_stopping_criteria(criteria, 5)
    with pytest.warns(UserWarning, match="`max_length` is 7, but a criterion ends at 5"):
        validate_stopping_criteria(criteria, 7)


class Characters:
    """A tokenizer of single characters."""

    def get_vocab(self) -> dict[str, int]:
        return {chr(code): code for code in range(97, 123)}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


def test_built_in_the_documented_order() -> None:
    config = GenerationConfig(
        max_length=9, max_time=3.0, eos_token_id=[2], stop_strings="ab", pad_token_id=0
    )
    user = StoppingCriteriaList([CancelCriteria()])
    built = build_stopping_criteria(config, tokenizer=Characters(), user_criteria=user)
    assert [type(each) for each in built] == [
        MaxLengthCriteria,
        MaxTimeCriteria,
        StopStringCriteria,
        EosTokenCriteria,
        CancelCriteria,
    ]
    assert build_stopping_criteria(GenerationConfig()) == []


def test_the_order_is_that_of_the_reference() -> None:
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=9,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
        )
    )
    config = transformers.GenerationConfig(max_length=9, max_time=3.0)
    config._eos_token_tensor = torch.tensor([2])
    theirs = model._get_stopping_criteria(config, reference.StoppingCriteriaList())
    ours = build_stopping_criteria(GenerationConfig(max_length=9, max_time=3.0, eos_token_id=2))
    assert [type(each).__name__ for each in ours] == [type(each).__name__ for each in theirs]


def test_stop_strings_need_a_tokenizer() -> None:
    with pytest.raises(InvalidRequestError, match=r"stop_strings.*tokenizer="):
        build_stopping_criteria(GenerationConfig(stop_strings=["ab"]))


def test_a_criterion_twice_is_refused() -> None:
    user = StoppingCriteriaList([MaxLengthCriteria(4)])
    assert len(build_stopping_criteria(GenerationConfig(), user_criteria=user)) == 1
    with pytest.raises(ValueError, match="already makes such a criterion"):
        build_stopping_criteria(GenerationConfig(max_length=9), user_criteria=user)


def test_stop_strings_per_row() -> None:
    criterion = StopStringCriteria(Characters(), ["stop", "end"])
    rows = ["xstop", "stopx", "xxend", "xendx"]
    ids = torch.tensor([[ord(character) for character in row] for row in rows])
    assert criterion(ids, None).tolist() == [True, False, True, False]
    assert criterion.stop_strings == ("stop", "end")


def test_answers_for_every_row() -> None:
    cancel = CancelCriteria()
    ids = torch.zeros(3, 5, dtype=torch.int64)
    assert cancel(ids).tolist() == [False] * 3
    cancel.set()
    cancel.set()
    assert cancel.is_set()
    assert cancel(ids, None, anything=1).tolist() == [True] * 3


def test_importing_it_brings_no_torch() -> None:
    code = "import sys, asyncgen.generation.stopping.cancel; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
