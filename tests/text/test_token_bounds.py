"""The least number of tokens is never more than the number of tokens."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from asyncgen import Tokenizer as Words
from asyncgen.text.token_bounds import least_tokens
from tests.cases import for_each
from tests.doubles.models import byte_tokenizer
from tests.doubles.tokenizers import KINDS, tokenizer_json


def spelled(**options: str) -> Tokenizer:
    """A byte-level tokenizer that marks the parts of words."""
    alphabet = {character: index for index, character in enumerate(ByteLevel.alphabet())}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[], **options))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    return backend


def changed(**parts: object) -> Tokenizer:
    """A byte-level tokenizer with other parts."""
    backend = Tokenizer.from_str(tokenizer_json("byte_level"))
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


BOUNDED = {
    "bytes": byte_tokenizer().backend_tokenizer,
    "byte_level": changed(),
    "byte_fallback": Tokenizer.from_str(tokenizer_json("byte_fallback")),
    "nfc": changed(normalizer=normalizers.NFC()),
    "split": changed(
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(r"\s+|\w+"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
}
UNBOUNDED = {
    "metaspace": Tokenizer.from_str(tokenizer_json("metaspace")),
    "wordpiece": Tokenizer.from_str(tokenizer_json("wordpiece")),
    "strip": changed(normalizer=normalizers.Strip()),
    "nfkc": changed(normalizer=normalizers.NFKC()),
    "replace": changed(normalizer=normalizers.Replace("abc", "")),
    "replace by a pattern": changed(normalizer=normalizers.Replace(Regex(" +"), " ")),
    "words": changed(pre_tokenizer=pre_tokenizers.Whitespace()),
    "removed": changed(
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
        )
    ),
    "parts of words": spelled(continuing_subword_prefix="##"),
    "ends of words": spelled(end_of_word_suffix="</w>"),
    "no bytes": changed(pre_tokenizer=pre_tokenizers.Digits()),
}
TEXTS = st.one_of(
    st.text(max_size=200),
    st.text("the quick ofx'\n 1234é漢😀\u0301\u212a", max_size=400),
    st.sampled_from([" " * 300, "the quick brown fox " * 30, "\u1112\u1161\u11ab" * 40]),
)


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_no_text_has_fewer_tokens(name: str, text: str) -> None:
    backend = BOUNDED[name]
    count = len(backend.encode(text, add_special_tokens=False).ids)
    assert least_tokens(backend, text) <= count
    assert not text or least_tokens(backend, text) > 0


@for_each("name", UNBOUNDED)
def test_bound_is_zero_if_the_tokenizer_may_drop_text(name: str) -> None:
    assert least_tokens(UNBOUNDED[name], "x" * 10_000) == 0


def test_the_longest_token() -> None:
    tokenizer = byte_tokenizer()
    assert tokenizer.longest_token == max(len(token.encode()) for token in tokenizer.get_vocab())
    assert tokenizer.longest_token is not None
    tokenizer.add_tokens(["x" * 77])
    assert tokenizer.longest_token == 77
    assert Words(UNBOUNDED["words"]).longest_token is None


def test_bound_is_zero_after_truncation_is_enabled() -> None:
    backend = changed()
    assert least_tokens(backend, "x" * 10_000) > 0
    backend.enable_truncation(5)
    assert least_tokens(backend, "x" * 10_000) == 0


def test_a_token_that_takes_in_spaces() -> None:
    backend = changed()
    assert least_tokens(backend, "x" * 10_000) > 0
    backend.add_special_tokens([AddedToken("<s>", lstrip=True)])
    assert len(backend.encode(" " * 9000 + "<s>").ids) == 1
    assert least_tokens(backend, " " * 9000 + "<s>") == 0


def test_every_kind_is_looked_at() -> None:
    assert set(KINDS) <= {*BOUNDED, *UNBOUNDED}


def test_bound_of_a_normal_form() -> None:
    """The bound that normal forms are given, over every character there is."""
    for form in ("NFC", "NFD"):
        for code in [*range(0x80, 0xD800), *range(0xE000, 0x32000)]:
            character = chr(code)
            normal = unicodedata.normalize(form, character)
            if normal != character:
                assert len(character.encode()) <= 3 * len(normal.encode())
            if form == "NFC":
                whole = unicodedata.normalize("NFD", character)
                assert len(whole.encode()) <= 3 * len(character.encode())
