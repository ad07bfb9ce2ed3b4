"""Stop strings over real tokenizers, against transformers and against plain string search."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers.generation import stopping_criteria as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.stopping.criteria import StopStringCriteria
from asyncgen.generation.stopping.stop_strings import StopStringMatcher, TokenBytes
from tests.cases import for_each

CORPUS = ["the stop stopper topper stopped opera steep step pots naïve café 日本語 🦊 abcdef"] * 30


@functools.cache
def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@functools.cache
def byte_fallback() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    special = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@functools.cache
def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=90, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


KINDS = [byte_level, byte_fallback, word_piece]


@pytest.mark.parametrize("kind", KINDS)
def test_random_sequences_as_in_the_reference(kind: Any) -> None:
    tokenizer, chooser = kind(), random.Random(3)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    likely = [
        number
        for token, number in tokenizer.get_vocab().items()
        if token.isascii() and set(token) & set("stope")
    ]
    hits = 0
    for stops in (["stop"], ["st", "topp"], ["p", " st"], ["stopped op", "o"], ["e"]):
        theirs = reference.StopStringCriteria(wrapped, stops)
        ours = [StopStringCriteria(each, stops) for each in (tokenizer, wrapped)]
        for _ in range(40):
            rows = [[chooser.choice(likely) for _ in range(9)] for _ in range(3)]
            ids = torch.tensor(rows)
            expected = theirs(ids, None)
            hits += int(expected.sum())
            assert all(torch.equal(each(ids, None), expected) for each in ours)
    assert hits > 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_match_is_seen_at_its_last_token_and_only_there(kind: Any) -> None:
    tokenizer = kind()
    ids = tokenizer.encode("the stop stopped steep", add_special_tokens=False).ids
    matcher = StopStringMatcher(tokenizer, ["stop"])
    known = TokenBytes(tokenizer)
    text, seen = b"", []
    for position, token in enumerate(ids):
        before, text = text, text + known[token]
        found = matcher.ends_with_stop(ids[: position + 1], 0, torch.tensor([ids[: position + 1]]))
        assert found == (text.count(b"stop") > before.count(b"stop"))
        seen.append(found)
    assert sum(seen) == 2


def test_special_tokens_count_as_text() -> None:
    tokenizer = byte_level()
    criterion = StopStringCriteria(tokenizer, "p<|end|>")
    ids = tokenizer.encode("stop<|end|>", add_special_tokens=False).ids
    assert ids[-1] == tokenizer.token_to_id("<|end|>")
    assert criterion(torch.tensor([ids]), None).item()
    assert not criterion(torch.tensor([ids[:-1]]), None).item()


@for_each("kind", [byte_level, byte_fallback])
@for_each("stop", ["é", "語", "本語", "🦊", "🦊!", "x🦊"])
def test_characters_spread_over_tokens(kind: Any, stop: str) -> None:
    tokenizer = kind()
    vocabulary = tokenizer.get_vocab()
    if kind is byte_fallback:
        ids = [vocabulary[f"<0x{byte:02X}>"] for byte in f"a{stop}".encode()]
    else:
        alphabet = {
            byte: token
            for token, number in vocabulary.items()
            if len(token) == 1 and len(byte := TokenBytes(tokenizer)[number]) == 1
        }
        ids = [vocabulary[alphabet[bytes([byte])]] for byte in f"a{stop}".encode()]
    criterion = StopStringCriteria(tokenizer, [stop])
    for length in range(1, len(ids) + 1):
        found = bool(criterion(torch.tensor([ids[:length]]), None))
        assert found == (length == len(ids))


def test_every_token_of_a_text_adds_its_bytes() -> None:
    text = "the naïve café 🦊 日本語 stop"
    for kind in (byte_level, byte_fallback):
        tokenizer = kind()
        known = TokenBytes(tokenizer)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert b"".join(known[token] for token in ids).strip() == text.encode()


def test_ids_without_text_do_not_hide_a_match() -> None:
    tokenizer = byte_level()
    beyond = tokenizer.get_vocab_size() + 5
    first, last = (tokenizer.token_to_id(token) for token in ("s", "t"))
    criterion = StopStringCriteria(tokenizer, "st")
    assert criterion(torch.tensor([[first, *[beyond] * 20, last]]), None).item()
    assert not criterion(torch.tensor([[first, last, beyond]]), None).item()


def test_tokens_are_worked_out_once() -> None:
    tokenizer = byte_level()
    calls = []

    class Counting:
        """Counts how often it decodes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(tokenizer, name)

        def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
            calls.append(token_ids)
            return tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    criterion = StopStringCriteria(Counting(), "never there")
    ids = torch.randint(1, 100, (4, 30))
    for _ in range(5):
        criterion(ids, None)
    once = len(calls)
    criterion(ids, None)
    assert len(calls) == once <= ids.numel() + 1


@for_each("stops", [[], "", [""], ["a", ""], [3]])
def test_bad_stop_strings(stops: Any) -> None:
    with pytest.raises(InvalidRequestError, match="stop_strings"):
        StopStringCriteria(byte_level(), stops)
