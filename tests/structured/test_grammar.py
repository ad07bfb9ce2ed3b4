"""A matcher is a function of the ids of its row: forwards, back, and behind a text."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.generation.logits.grammar_mask import GrammarLogitsProcessor, unpack_mask, within
from asyncgen.generation.stopping.structured_output import GrammarCriteria
from asyncgen.structured.grammar_compiler import compile_grammar
from asyncgen.structured.output_format import read_output_format
from tests.doubles.models import byte_tokenizer

if TYPE_CHECKING:
    from asyncgen.structured.grammar import Grammar, Matcher
    from asyncgen.text.tokenizer import Tokenizer

EOS = 256
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"enum": [1, 12, "ü"]}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    """A tokenizer whose tokens are longer than a byte."""
    tokenizer: Tokenizer = asyncgen.AutoTokenizer.from_pretrained("demo")
    return tokenizer


def grammar_of(tokenizer: Any = None, size: int = 260, after: str = "", **asked: Any) -> Grammar:
    """A compiled shape."""
    shape = read_output_format(asked)
    assert shape is not None
    shape = dataclasses.replace(shape, after=after)
    return compile_grammar(shape, tokenizer or byte_tokenizer(), size)


def allowed(matcher: Matcher) -> set[int]:
    """Ids that may come next."""
    words = torch.empty(1, matcher.grammar.num_words, dtype=torch.int32)
    matcher.fill(words[0])
    banned = unpack_mask(words, matcher.grammar.vocab_size)[0]
    return set((~banned).nonzero()[:, 0].tolist())


def test_masks_are_unpacked() -> None:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**31), 2**31, (3, 5), generator=generator, dtype=torch.int32)
    found = unpack_mask(words, 150)
    for row in range(3):
        for token in range(150):
            bit = int(words[row, token // 32]) >> (token % 32) & 1
            assert bool(found[row, token]) is not bool(bit)


def test_of_a_row_where_all_is_banned_the_allowed_are_equally_likely() -> None:
    scores = torch.tensor([[1.0, -torch.inf, 2.0], [1.0, -torch.inf, -torch.inf]])
    banned = torch.tensor([[False, False, True], [True, False, False]])
    inf = -torch.inf
    assert within(scores, banned).tolist() == [[1.0, inf, inf], [inf, 0.0, 0.0]]


def test_the_end_is_allowed_where_the_shape_is_complete_alone() -> None:
    matcher = grammar_of(regex="ab?").matcher([EOS])
    assert allowed(matcher) == {ord("a")} and matcher.forced == (ord("a"),)
    assert matcher.accept(ord("a")) and matcher.is_complete and not matcher.is_over
    assert allowed(matcher) == {ord("b"), EOS}
    other = grammar_of(regex="ab?").matcher([EOS])
    other.extend([ord("a"), EOS])
    assert other.has_ended and other.is_complete
    assert matcher.accept(ord("b")) and matcher.is_over
    assert allowed(matcher) == {EOS}
    assert not matcher.accept(ord("c")) and matcher.is_lost
    matcher.rollback(3)
    assert not matcher.is_lost and not matcher.accept(EOS) and not matcher.is_complete


def test_a_text_token_that_ends_rows_is_no_text() -> None:
    matcher = grammar_of(regex="a[bc]").matcher([ord("b")])
    matcher.accept(ord("a"))
    assert allowed(matcher) == {ord("c")}


def test_the_own_end_of_a_tokenizer_ends_no_row_of_another() -> None:
    matcher = grammar_of(regex="a*").matcher([EOS + 1])
    assert allowed(matcher) == {ord("a"), EOS + 1}


def test_a_matcher_is_a_function_of_its_ids(demo: Tokenizer) -> None:
    grammar, rng = grammar_of(demo, 2048, json_schema=SCHEMA), random.Random(0)
    wandering = grammar.matcher([2])
    for _ in range(12):
        row = grammar.matcher([2])
        while not row.is_over and len(row.token_ids) < 60:
            row.accept(rng.choice(sorted(allowed(row))))
            if rng.random() < 0.2:
                wandering.follow([9, 9, *row.token_ids], 2)
                assert wandering.token_ids == row.token_ids
                assert wandering.forced == row.forced
                assert allowed(wandering) == allowed(row)
        wandering.follow(row.token_ids)
        assert wandering.is_over == row.is_over
        for count in (3, 1, 2):
            row.rollback(count)
            wandering.follow(row.token_ids)
            assert (wandering.forced, allowed(wandering)) == (row.forced, allowed(row))


def test_forced_tokens_equal_the_tokenization_of_the_text(demo: Tokenizer) -> None:
    matcher = grammar_of(demo, 2048, choice=["Once upon a time, there was a fox."]).matcher([2])
    while matcher.forced:
        matcher.accept(matcher.forced[0])
    ids = matcher.token_ids
    assert ids == demo.encode_ids("Once upon a time, there was a fox.", False)[: len(ids)]
    assert len(ids) >= 5


def test_structured_output_begins_after_a_text(demo: Tokenizer) -> None:
    grammar = grammar_of(demo, 2048, after="</think>", regex="[0-9]{2}x")
    text = "Let me think. <think> 12 </think>\n\n7"
    matcher = grammar.matcher([2])
    for number, token in enumerate(demo.encode_ids(text, False)):
        begun = "</think>" in demo.decode(demo.encode_ids(text, False)[:number])
        assert matcher.is_free is not begun
        assert begun or allowed(matcher) == set(range(2048)) - {2}
        if not matcher.is_free and "\n" in demo.decode([token]):
            continue  # not in one token with the marker: the shape has begun
        assert matcher.accept(token)
    assert not matcher.is_free and not matcher.is_complete
    matcher.follow(demo.encode_ids("a", False))
    assert matcher.is_free


def test_processor_and_criterion_follow_rows_that_change_places() -> None:
    grammar = grammar_of(regex="ab|cd")
    processor = GrammarLogitsProcessor(grammar, [EOS], prompt_length=1)
    criterion = GrammarCriteria(grammar, 1)
    rows = torch.tensor([[7, ord("a")], [7, ord("c")]])
    for ids in (rows, rows.flip(0), rows[:1]):
        scores = processor(ids, torch.zeros(len(ids), 260))
        best = {ord("a"): ord("b"), ord("c"): ord("d")}
        assert scores.argmax(-1).tolist() == [best[int(row[1])] for row in ids]
        assert scores.isfinite().sum(-1).tolist() == [1] * len(ids)
        assert not criterion(ids).any()
    whole = torch.tensor([[7, ord("a"), ord("b")], [7, ord("c"), ord("x")]])
    assert criterion(whole).tolist() == [True, False]


def test_the_processor_serves_model_generate() -> None:
    model = asyncgen.AutoModelForCausalLM.from_pretrained("demo")
    tokenizer = asyncgen.AutoTokenizer.from_pretrained("demo")
    inputs = tokenizer(["Is it? ", "A day. "], return_tensors="pt", padding=True)
    ways: list[dict[str, Any]] = [{"do_sample": True}, {"num_beams": 3, "do_sample": False}]
    for options in ways:
        shape = GrammarLogitsProcessor.of(model, tokenizer, choice=["yes", "no", "nobody"])
        processors = asyncgen.LogitsProcessorList([shape])
        ids = model.generate(**inputs, logits_processor=processors, max_new_tokens=12, **options)
        assert isinstance(ids, torch.Tensor)
        texts = tokenizer.batch_decode(
            ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        assert set(texts) <= {"yes", "no", "nobody"}
    unknown: list[dict[str, Any]] = [{}, {"jsonschema": {}}]
    for wrong in unknown:
        with pytest.raises(asyncgen.InvalidRequestError, match="one of json_schema"):
            GrammarLogitsProcessor.of(model, tokenizer, **wrong)
