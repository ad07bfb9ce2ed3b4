"""The joined pieces are the text, whatever the tokenizer, and the tokenizer is not asked."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, decoders, models

from streamers.detokenizer import Detokenizer
from tests.streamers.cases import BYTE_KINDS, TEXTS, Case, case_of

if TYPE_CHECKING:
    from collections.abc import Sequence


class OnlyDecode:
    """A tokenizer of which nothing is known; counts what it is asked."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._inner = tokenizer
        self.calls = 0
        self.longest = 0

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        self.calls += 1
        self.longest = max(self.longest, len(ids))
        return str(self._inner.decode(ids, skip_special_tokens=skip_special_tokens))


class Wrapper:
    """A tokenizer around a backend, like those of transformers; counts decodes."""

    def __init__(self, backend: Tokenizer, clean: bool = False) -> None:
        self.backend_tokenizer = backend
        self.clean_up_tokenization_spaces = clean
        self.calls = 0
        self.shout = False

    def decode(
        self,
        ids: list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        self.calls += 1
        text = str(self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
        clean = clean_up_tokenization_spaces
        if self.clean_up_tokenization_spaces if clean is None else clean:
            for mark in (" .", " ,", " ?", " !", " n't", " 'm", " 's", " 've", " 're"):
                text = text.replace(mark, mark[1:])
        return text.upper() if self.shout else text


def ids_of(case: Case, *tokens: str) -> list[int]:
    """Return the ids of tokens."""
    vocabulary = case.tokenizer.get_vocab()
    return [vocabulary[token] for token in tokens]


def sequences(case: Case, count: int, seed: int) -> list[list[int]]:
    """Random ids, real text cut anywhere, added tokens and ids outside the vocabulary, mixed."""
    rng = random.Random(f"{case.kind}-{seed}")
    texts = [case.tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    added = list(case.tokenizer.get_added_tokens_decoder())
    made = []
    for _ in range(count):
        ids: list[int] = []
        for _ in range(rng.randrange(1, 5)):
            match rng.randrange(5):
                case 0:
                    ids += [rng.randrange(case.size) for _ in range(rng.randrange(8))]
                case 1:
                    ids += rng.choices(added, k=rng.randrange(3))
                case 2:
                    ids.append(rng.choice([case.size + 5, 10**6, 2**32 - 1]))
                case _:
                    real = rng.choice(texts)
                    start = rng.randrange(len(real))
                    ids += real[start : start + rng.randrange(1, 16)]
        made.append(ids)
    return made


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


def test_a_copy_goes_its_own_way(case: Case) -> None:
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
    tables = {id(stream._stream._table) for stream in streams}  # type: ignore[attr-defined]
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


# --- windows: tokenizers of which only `decode` is known ---


def joined(stream: Detokenizer, ids: Sequence[int]) -> str:
    """Stream ids one by one to the end."""
    return "".join([stream.put(i) for i in ids]) + stream.flush()


def test_windows_give_the_same_text_for_real_text(case: Case) -> None:
    rng = random.Random(5)
    for _ in range(30):
        ids = case.tokenizer.encode(" ".join(rng.choices(TEXTS, k=2))).ids
        ids = ids[: rng.randrange(1, len(ids))]
        while case.kind in BYTE_KINDS[1:] and case.text(ids, True).endswith("\ufffd"):
            ids.pop()  # `decode` would show all bytes before a cut character as invalid
        cut = rng.randrange(len(ids))
        decoded = case.tokenizer.decode(ids)
        stream = Detokenizer(OnlyDecode(case.tokenizer))
        if case.kind == "bpe_suffix":
            # The space at a word's end is a property of the last token, so a window moves it.
            assert joined(stream, ids).replace(" ", "") == decoded.replace(" ", "")
            continue
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
