"""Test that only lists, arrays and tensors of whole numbers are taken for token ids."""

from __future__ import annotations

from array import array
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.bans import SuppressTokensLogitsProcessor
from asyncgen.generation.stopping.criteria import EosTokenCriteria
from tests.cases import for_each

PARAMETERS = (
    "prompt",
    "generated_ids",
    "stop_token_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "eos_token_id",
    "forced_eos_token_id",
    "bad_words_ids",
)

OTHERS: tuple[Any, ...] = (
    memoryview(b"ab"),
    memoryview(array("i", [5, 6])),
    [memoryview(b"ab")],
    b"ab",
    bytearray(b"ab"),
    {5: 1.0},
    {5: 1.0}.keys(),
    iter([5, 6]),
    np.array([5.0, 6.0]),
    np.array([True, False]),
    [True, False],
    torch.tensor([1.5]),
    torch.tensor([True]),
)


@pytest.fixture(scope="module")
def llm() -> Any:
    with asyncgen.LLM("demo") as opened:
        yield opened


def _ask(llm: Any, name: str, value: Any) -> Any:
    if name == "prompt":
        return llm.generate(value, max_new_tokens=1)
    value = [value] if name == "bad_words_ids" else value
    return llm.generate("Hi", max_new_tokens=3, **{name: value})


def test_what_holds_no_token_ids_is_refused_by_name(llm: Any) -> None:
    for name in PARAMETERS:
        for value in (*OTHERS, *(() if name == "prompt" else ("ab",))):
            with pytest.raises(InvalidRequestError) as refused:
                _ask(llm, name, value)
                pytest.fail(f"{name} took {value!r}")
            assert refused.value.parameter == name


def test_lists_arrays_and_tensors_of_whole_numbers_are_taken(llm: Any) -> None:
    for name in PARAMETERS[1:]:
        if name == "generated_ids":
            continue  # they must be what the prompt continues with
        for value in ([5, 6], np.array([5, 6]), array("i", [5, 6]), torch.tensor([5, 6])):
            _ask(llm, name, value)
    for prompt in ([5, 6], array("i", [5, 6]), deque([5, 6]), range(5, 7)):
        assert llm.generate(prompt, max_new_tokens=1).usage.prompt_tokens == 2


@for_each("value", [b"ab", bytearray(b"ab"), memoryview(b"ab"), [True], "ab"])
def test_classes_and_tokenizer_take_them_no_more(llm: Any, value: Any) -> None:
    with pytest.raises(TypeError):
        SuppressTokensLogitsProcessor(value)
    with pytest.raises((TypeError, ValueError)):
        EosTokenCriteria(value)
    with pytest.raises(InvalidRequestError):
        llm.tokenizer.decode(value)
    with pytest.raises(InvalidRequestError):
        llm.tokenizer.batch_decode([value])
