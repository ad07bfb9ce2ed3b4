"""The corpus is deterministic and keeps the held-out pairs out."""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from asyncgen_apps.demo_model import corpus
from asyncgen_apps.demo_model.tokenizer import train_tokenizer
from asyncgen_apps.demo_model.world import mentions_held_out

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(1, vocab_size=600, sample=40)


def test_the_same_seed_gives_the_same_documents() -> None:
    assert list(islice(corpus.documents(5), 50)) == list(islice(corpus.documents(5), 50))
    assert list(islice(corpus.documents(5), 5)) != list(islice(corpus.documents(6), 5))


def test_held_out_pairs_never_meet() -> None:
    texts = [corpus.text_of(document) for document in islice(corpus.documents(7), 1500)]
    assert not any(mentions_held_out(text) for text in texts)


def test_only_answers_are_spoken() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]
    document = corpus.render(messages)
    assert corpus.text_of(document) == "<|bos|><|user|>Hi<|end|><|assistant|>Hello!<|end|>"
    assert [segment.text for segment in document if segment.spoken] == ["Hello!<|end|>"]


@pytest.mark.parametrize("length", corpus.Length)
def test_rows_are_full_and_begin_a_document(tokenizer: Tokenizer, length: corpus.Length) -> None:
    ids, weights = corpus.row(tokenizer, random.Random(1), length)
    assert len(ids) == len(weights) == corpus.ROW_TOKENS[length] + 1
    assert ids[0] == tokenizer.token_to_id(corpus.BOS)
    assert set(weights) == {corpus.PROMPT_WEIGHT, 1.0}


def test_all_shapes_occur() -> None:
    assert {corpus.length_of_step(7, step) for step in range(80)} == set(corpus.ROW_SHARE)


def test_late_documents_hold_more_small_questions_and_short_answers_weigh_more(
    tokenizer: Tokenizer,
) -> None:
    counts = []
    for late in (False, True):
        rng = random.Random(3)
        drawn = [corpus.document(rng, corpus.Length.SHORT, late) for _ in range(200)]
        counts.append(sum(len(corpus.text_of(document)) for document in drawn))
    assert counts[1] < counts[0]
    answer = (corpus.Segment("Hello!" + corpus.END, True),)
    assert set(corpus.encode(tokenizer, answer, late=True)[1]) == {corpus.SHORT_ANSWER_WEIGHT}


def test_the_first_steps_drill_copying() -> None:
    assert corpus.length_of_step(7, 5, drills=6) is corpus.Length.DRILL
    assert corpus.length_of_step(7, 6, drills=6) is not corpus.Length.DRILL
