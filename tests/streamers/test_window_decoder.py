"""Tokenizers of which only `decode` is known: the same text, from windows that do not grow."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from streamers.detokenizer import Detokenizer
from tests.streamers.cases import (
    BYTE_KINDS,
    TEXTS,
    Case,
    OnlyDecode,
    Wrapper,
    case_of,
    ids_of,
    joined,
    sequences,
)


def test_windows_give_the_same_text_for_real_text(case: Case) -> None:
    rng = random.Random(5)
    for _ in range(30):
        ids = case.tokenizer.encode(" ".join(rng.choices(TEXTS, k=2))).ids
        ids = ids[: rng.randrange(1, len(ids))]
        while case.kind in BYTE_KINDS[1:] and case.text(ids, True).endswith("\ufffd"):
            ids.pop()  # `decode` would show all bytes before a cut character as invalid
        cut = rng.randrange(len(ids))
        stream = Detokenizer(OnlyDecode(case.tokenizer))
        assert joined(stream, ids) == case.text(ids, True)
        head = case.text(ids[:cut], True, complete=True)
        stream = Detokenizer(OnlyDecode(case.tokenizer), prompt_ids=ids[:cut])
        assert joined(stream, ids[cut:]) == case.text(ids, True)[len(head) :]


def test_windows_are_exact_for_byte_level_nonsense(byte_level: Case) -> None:
    for ids in sequences(byte_level, 200, seed=6):
        stream = Detokenizer(OnlyDecode(byte_level.tokenizer))
        assert joined(stream, ids) == byte_level.text(ids, True)


def test_windows_are_bounded(case: Case) -> None:
    tokenizer = OnlyDecode(case.tokenizer)
    stream = Detokenizer(tokenizer)
    rng = random.Random(7)
    ids = [rng.randrange(case.size) for _ in range(1000)]
    stream.put(ids)
    for token_id in ids:
        stream.put(token_id)
    assert tokenizer.longest <= 64
    assert tokenizer.calls < 4 * 2000


@pytest.mark.parametrize("kind", BYTE_KINDS)
def test_windows_do_not_grow_in_a_run_of_invalid_bytes(kind: str) -> None:
    tokenizer = OnlyDecode(case_of(kind).tokenizer)
    token = "ÿ" if kind == "byte_level" else "<0xFF>"
    [token_id] = ids_of(case_of(kind), token)
    stream = Detokenizer(tokenizer)
    out = [stream.put(token_id) for _ in range(500)]
    assert len("".join(out)) > 480
    assert "".join(out) + stream.flush() == "\ufffd" * 500
    assert tokenizer.longest <= 64
    assert tokenizer.calls < 500 * 12


@pytest.mark.parametrize("kind", ["word_piece", "byte_level"])
@pytest.mark.parametrize("by", ["attribute", "argument"])
def test_clean_up_of_spaces_is_followed(kind: str, by: str) -> None:
    case = case_of(kind)
    wrapper = Wrapper(case.tokenizer, clean=by == "attribute")
    kwargs: dict[str, Any] = {} if by == "attribute" else {"clean_up_tokenization_spaces": True}
    ids = case.tokenizer.encode(TEXTS[0]).ids
    text = wrapper.decode(ids, **kwargs)
    assert text != case.tokenizer.decode(ids)
    assert joined(Detokenizer(wrapper, **kwargs), ids) == text


def test_a_wrapper_that_changes_the_text_is_believed(byte_level: Case) -> None:
    wrapper = Wrapper(byte_level.tokenizer)
    wrapper.shout = True
    ids = byte_level.tokenizer.encode("hello world, it is me").ids
    assert joined(Detokenizer(wrapper), ids) == "HELLO WORLD, IT IS ME"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Strip("a", 0, 1)]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Replace("ab", "x")]),
    ],
)
def test_unknown_decoders_are_decoded_in_windows(decoder: decoders.Decoder) -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1, "|": 2}, []))
    tokenizer.decoder = decoder
    assert joined(Detokenizer(tokenizer), [1, 1, 0, 2, 1]) == tokenizer.decode([1, 1, 0, 2, 1])


def test_decoders_written_in_python_are_decoded_in_windows() -> None:
    class Upper:
        def decode_chain(self, tokens: list[str]) -> list[str]:
            return [token.upper() for token in tokens]

    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.decoder = decoders.Decoder.custom(Upper())
    assert joined(Detokenizer(tokenizer), [0, 1, 0]) == "ABA"


def test_copy_is_independent_of_the_original(byte_level: Case) -> None:
    for ids in sequences(byte_level, 40, seed=8):
        cut = len(ids) // 2
        one = Detokenizer(OnlyDecode(byte_level.tokenizer))
        text = one.put(ids[:cut])
        two = copy.copy(one)
        assert text + two.flush() == byte_level.text(ids[:cut], True)
        assert text + one.put(ids[cut:]) + one.flush() == byte_level.text(ids, True)
