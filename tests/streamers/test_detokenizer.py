"""The joined pieces are the text, whatever the tokenizer, and the tokenizer is not asked."""

from __future__ import annotations

import copy
import gc
import random
import weakref

import pytest
from tokenizers import Tokenizer, models

from streamers.detokenizer import Detokenizer
from tests.streamers.cases import BYTE_KINDS, TEXTS, Case, Wrapper, case_of, ids_of, sequences


def check(case: Case, ids: list[int], rng: random.Random) -> None:
    """Stream `ids` behind a random part of them as the prompt, or none, and compare."""
    skip = rng.random() < 0.5
    cut = rng.choice([None, rng.randrange(len(ids) + 1)])
    prompt, rest = (None, ids) if cut is None else (ids[:cut], ids[cut:])
    head = case.text(prompt or [], skip, complete=True)
    expected = case.text(ids, skip)[len(head) :]
    stream = Detokenizer(case.tokenizer, prompt_ids=prompt, skip_special_tokens=skip)
    shown, settled = "", 0
    for i, token_id in enumerate(rest):
        shown += stream.put(token_id)
        assert expected.startswith(shown)
        if case.kind in BYTE_KINDS:  # every character that is complete is out
            settled = len(case.text(ids[: (cut or 0) + i + 1], skip, complete=True)) - len(head)
            assert len(shown) == settled
    assert shown + stream.flush() == expected


def test_every_step_is_a_prefix_and_the_end_is_the_text(case: Case) -> None:
    rng = random.Random(1)
    for ids in sequences(case, 300, seed=1):
        check(case, ids, rng)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_ten_thousand_sequences(case: Case) -> None:
    rng = random.Random(2)
    for ids in sequences(case, 10_000, seed=2):
        check(case, ids, rng)


def test_ids_may_come_several_at_once(case: Case) -> None:
    rng = random.Random(3)
    for ids in sequences(case, 50, seed=3):
        stream, text, rest = Detokenizer(case.tokenizer), "", ids
        while rest:
            n = rng.randrange(1, 5)
            text += stream.put(rest[:n])
            rest = rest[n:]
        assert text + stream.flush() == case.text(ids, True)


def test_each_complete_character_comes_at_once(byte_level: Case) -> None:
    stream = Detokenizer(byte_level.tokenizer)
    byte_ids = ids_of(byte_level, *"ðŁĺĢ")  # the bytes of U+1F600
    assert [stream.put(i) for i in byte_ids] == ["", "", "", "😀"]
    assert stream.flush() == ""


def test_an_incomplete_character_comes_at_the_end(byte_level: Case) -> None:
    stream = Detokenizer(byte_level.tokenizer)
    assert stream.put(ids_of(byte_level, "ð")) == ""
    assert stream.flush() == "\ufffd"
    assert stream.flush() == ""


def test_valid_characters_are_never_taken_back() -> None:
    case = case_of("byte_fallback")
    stream = Detokenizer(case.tokenizer)
    ids = ids_of(case, "<0xC3>", "<0xA9>", "<0xFF>", "<0xC3>", "<0xA9>")
    assert [stream.put(i) for i in ids] == ["", "é", "\ufffd", "", "é"]


def test_copy_is_independent_of_the_original(case: Case) -> None:
    for ids in sequences(case, 40, seed=4):
        cut = len(ids) // 2
        one = Detokenizer(case.tokenizer)
        text = one.put(ids[:cut])
        two = copy.copy(one)
        assert text + two.flush() == case.text(ids[:cut], True)
        assert text + one.put(ids[cut:]) + one.flush() == case.text(ids, True)


def test_no_decode_per_token(byte_level: Case) -> None:
    wrapper = Wrapper(byte_level.tokenizer)
    ids = byte_level.tokenizer.encode(" ".join(TEXTS * 20)).ids
    Detokenizer(wrapper, prompt_ids=ids).put(ids)
    before = wrapper.calls
    for _ in range(3):
        stream = Detokenizer(wrapper, prompt_ids=ids[:50])
        for token_id in ids:
            stream.put(token_id)
    assert wrapper.calls == before <= 8


def test_wrappers_share_one_table(byte_level: Case) -> None:
    streams = [Detokenizer(Wrapper(byte_level.tokenizer)) for _ in range(3)]
    tables = {id(stream._decoder._table) for stream in streams}  # type: ignore[union-attr]
    assert len(tables) == 1


def test_a_tokenizer_can_be_collected() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    stream = Detokenizer(tokenizer)
    gone = weakref.ref(tokenizer)
    del tokenizer
    assert stream.put(0) == "a"  # the stream keeps it
    del stream
    gc.collect()
    assert gone() is None


def test_tokens_added_later_are_seen() -> None:
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    assert Detokenizer(tokenizer).put([0, 1]) == "a"
    tokenizer.add_tokens(["new"])
    assert Detokenizer(tokenizer).put([0, 1]) == "a new"


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_ids_must_fit(byte_level: Case, bad: int) -> None:
    with pytest.raises(ValueError, match="not between 0 and"):
        Detokenizer(byte_level.tokenizer).put(bad)
