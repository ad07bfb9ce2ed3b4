"""Wherever an answer ends: under ``"stop"`` it is whole, and else the reason is told."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.llm.llm import LLM
from tests.cases import for_each
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from asyncgen.types import Sample

TEXT = {"type": "string", "maxLength": 12}
PATTERN = "(ab|cd){2,9}"
SHAPES: dict[str, tuple[dict[str, Any], Callable[[str], object]]] = {
    "text": ({"json_schema": TEXT}, lambda text: len(json.loads(text)) <= 12),
    "array": (
        {"json_schema": {"type": "array", "items": {"type": "integer"}, "maxItems": 5}},
        lambda text: len(json.loads(text)) <= 5,
    ),
    "regex": ({"regex": PATTERN}, lambda text: re.fullmatch(PATTERN, text)),
    "choice": ({"choice": ["ab", "abc", "abcde"]}, lambda text: text in ("ab", "abc", "abcde")),
}
DRAFTER = TableModel(eos_bias=0.2)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeds": {"temperature": 1.5, "seed": 3},
    "logprobs": {"logprobs": True, "temperature": 1.2, "seed": 5},
    "samples": {"n": 4, "temperature": 1.5, "seed": 7},
    "beams": {"num_beams": 4, "num_return_sequences": 3, "do_sample": False},
    "early": {"num_beams": 3, "do_sample": False, "early_stopping": True},
    "drawn beams": {"num_beams": 3, "do_sample": True, "seed": 2},
    "lookup": {"prompt_lookup_num_tokens": 4, "do_sample": False},
    "assisted": {"assistant_model": DRAFTER, "do_sample": False},
    "drawn drafts": {"assistant_model": DRAFTER, "temperature": 1.3, "seed": 1},
    "side": {"cache_implementation": "dynamic", "temperature": 1.4, "seed": 4},
    "stop": {"stop": ["a", '"']},
    "stop strings": {"stop_strings": ["a", "]"]},
    "stopped beams": {"num_beams": 3, "do_sample": False, "stop_strings": ["a"]},
    "stopped drafts": {"prompt_lookup_num_tokens": 4, "do_sample": False, "stop": ["a", '"']},
    "no end": {"suppress_tokens": [256]},
    "shown end": {"skip_special_tokens": False, "temperature": 1.5, "seed": 3},
    "stop ids": {"stop_token_ids": [ord("x"), ord("e")], "temperature": 1.5, "seed": 3},
    "stop ids of beams": {"stop_token_ids": [ord("x")], "num_beams": 3, "do_sample": False},
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(TableModel(eos_bias=0.5), tokenizer=byte_tokenizer()) as opened:
        yield opened


def is_right(sample: Sample, most: int, check: Callable[[str], object]) -> bool:
    """Tell whether a sample's fields agree with its text."""
    if len(sample.token_ids) > most:
        return False
    if sample.finish_reason == "stop":
        return bool(sample.parse_error is None and check(sample.text))
    return sample.parsed is None and bool(sample.parse_error)


@pytest.mark.gate
@for_each("way", WAYS)
def test_answers_that_stop_are_complete(llm: LLM, way: str) -> None:
    reasons = set()
    for given, check in SHAPES.values():
        for most in (1, 2, 3, 7, 30):
            found = llm.generate("abc", **given, **WAYS[way], max_new_tokens=most)
            for sample in found.samples:
                reasons.add(sample.finish_reason)
                assert is_right(sample, most, check), (given, most, sample)
    assert {"stop", "length"} <= reasons <= {"stop", "length", "incomplete"}


def test_a_stop_id_of_plain_text_is_no_part_of_the_answer(llm: LLM) -> None:
    """It ends the answer where that is complete, and is allowed nowhere else."""
    given: dict[str, Any] = {"regex": "(cd){2,9}", "stop_token_ids": [ord("]")]}
    found = llm.generate("abc", **given, suppress_tokens=[256], max_new_tokens=60)
    assert found.finish_reason == "stop" and re.fullmatch("(cd){2,9}", found.text)
    if found.stop_reason is not None:
        assert (found.stop_reason, found.token_ids[-1]) == (ord("]"), ord("]"))
        rest = llm.generate("abc", **given, generated_ids=list(found.token_ids))
        assert (rest.text, rest.parsed) == ("", found.text)


@pytest.mark.parametrize("further", [{}, {"num_beams": 2}, {"logprobs": True}], ids=str)
def test_regex_that_needs_a_stop_id_is_refused(llm: LLM, further: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="`regex`.*only with tokens that end an answer"):
        llm.generate("abc", regex="c[d]e", stop_token_ids=[ord("d")], **further)


def test_model_generate_gives_a_beginning_or_a_whole() -> None:
    model = asyncgen.AutoModelForCausalLM.from_pretrained("demo")
    tokenizer = asyncgen.AutoTokenizer.from_pretrained("demo")
    inputs = tokenizer("An animal: ", return_tensors="pt")
    start = inputs["input_ids"].shape[1]
    choice = ["a fox that slept", "a hen that slept all the day"]
    ways: list[dict[str, Any]] = [{"do_sample": True}, {"num_beams": 3, "do_sample": False}]
    for options in ways:
        for most in (1, 4, 40):
            shape = asyncgen.GrammarLogitsProcessor.of(model, tokenizer, choice=choice)
            processors = asyncgen.LogitsProcessorList([shape])
            ids = model.generate(
                **inputs, logits_processor=processors, max_new_tokens=most, **options
            )
            assert isinstance(ids, torch.Tensor)
            text = tokenizer.decode(ids[0, start:], skip_special_tokens=True)
            assert any(each.startswith(text) for each in choice)
            assert most < 40 or text in choice
