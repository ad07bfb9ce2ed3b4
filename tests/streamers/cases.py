"""Tokenizers of every kind, trained on the spot, what their text must be, and doubles of them."""

from __future__ import annotations

import codecs
import json
import random
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamers.detokenizer import Detokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog. It didn't stop, did it? No , it 's fine !",
    "Ein süßer Bär läuft über die Straße; él corrió rápido, señor. Ça va très bien à Zürich.",
    "日本語のテキストと中文字符。한국어 문장도 있습니다. Привет, мир! مرحبا بالعالم. สวัสดีชาวโลก",
    "Emoji 🙂🚀👩‍👩‍👧‍👦 and code: def f(x):\n\treturn x**2  # naïve\n\n- item one\n- item two\n",
    "naïve café — “quotes” … ½ ¼ 𝒳𝒴𝒵 \U0001f1e9\U0001f1ea 3.14 1,000 I'm we've don't do not",
]
SPECIAL = ["<s>", "</s>", "<pad>"]
ADDED = ["New York", "🙂 ok", "é", "<tool call>", " lead", "trail ", "日 本"]

BYTE_KINDS = ("byte_level", "byte_fallback", "gemma", "replace_after")
KINDS = (
    *BYTE_KINDS,
    "unigram_always",
    "unigram_first",
    "unigram_never",
    "bpe_metaspace",
    "word_piece",
    "word_piece_cleanup",
    "bpe_suffix",
    "strip_tokens",
    "no_decoder",
)


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _byte_fallback(decoder: decoders.Decoder) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.train_from_iterator(
        TEXTS[:2], trainers.BpeTrainer(vocab_size=200, show_progress=False)
    )
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    state["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoder
    return tokenizer


def _metaspace(model: str, scheme: str) -> Tokenizer:
    trainer: trainers.Trainer
    if model == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=260, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _word_piece(cleanup: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _suffix() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        end_of_word_suffix="</w>",
        special_tokens=["<unk>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def _build(kind: str) -> Tokenizer:
    to_space = decoders.Replace("▁", " ")
    fallback, fuse, strip = decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    match kind.split("_"):
        case ["byte", "level"]:
            return _byte_level()
        case ["byte", "fallback"]:
            return _byte_fallback(decoders.Sequence([to_space, fallback, fuse, strip]))
        case ["gemma"]:
            return _byte_fallback(decoders.Sequence([to_space, fallback, fuse]))
        case ["replace", "after"]:
            return _byte_fallback(decoders.Sequence([fallback, fuse, to_space, strip]))
        case ["unigram", scheme]:
            return _metaspace("unigram", scheme)
        case ["bpe", "metaspace"]:
            return _metaspace("bpe", "always")
        case ["word", "piece", *cleanup]:
            return _word_piece(bool(cleanup))
        case ["bpe", "suffix"]:
            return _suffix()
        case ["strip", "tokens"]:
            tokenizer = _metaspace("bpe", "always")
            tokenizer.decoder = decoders.Sequence([decoders.Strip("▁", 1, 0), to_space])
            return tokenizer
        case _:
            tokenizer = _metaspace("bpe", "never")
            tokenizer.decoder = None
            return tokenizer


@dataclass(frozen=True)
class Case:
    """One tokenizer and the text that its ids stand for.

    Attributes:
        kind: name of the tokenizer's kind.
        tokenizer: the tokenizer.
    """

    kind: str
    tokenizer: Tokenizer

    @property
    def size(self) -> int:
        """Number of ids."""
        return self.tokenizer.get_vocab_size()

    def bytes_of(self, ids: Sequence[int], skip: bool) -> bytes:
        """Return what the ids of a byte vocabulary spell, token by token."""
        spelled = b""
        for token_id in ids:
            token = _token(self.kind, token_id)
            if token is not None and not (skip and token in SPECIAL):
                spelled += _spelled(self.kind, token)
        return spelled

    def text(self, ids: Sequence[int], skip: bool, *, complete: bool = False) -> str:
        """Return the text of the ids.

        Args:
            ids: token ids.
            skip: whether special tokens are left out.
            complete: leave out an incomplete character at the end.
        """
        decoded: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip)
        if self.kind not in BYTE_KINDS:
            return decoded
        spelled = self.bytes_of(ids, skip)
        text = spelled.decode(errors="replace")
        if complete:
            text = codecs.utf_8_decode(spelled, "replace", False)[0]
        if self.kind == "replace_after":
            text = text.replace("▁", " ")
        if self.kind in ("byte_fallback", "replace_after"):
            text = text.removeprefix(" ")
        if not complete and (self.kind == "byte_level" or _valid(spelled)):
            assert text == decoded
        return text


@cache
def _token(kind: str, token_id: int) -> str | None:
    return case_of(kind).tokenizer.id_to_token(token_id)


@cache
def _alphabet() -> dict[str, int]:
    """Character -> byte: itself where it is one, else in order of the code points."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    own = {ord(c) for c in characters if ord(c) < 256}
    others = iter(sorted({*range(256)} - own))
    return {c: ord(c) if ord(c) < 256 else next(others) for c in characters}


@cache
def _spelled(kind: str, token: str) -> bytes:
    if kind == "byte_level":
        known = all(c in _alphabet() for c in token)
        return bytes(_alphabet()[c] for c in token) if known else token.encode()
    if len(token) == 6 and token.startswith("<0x"):
        return bytes.fromhex(token[3:5])
    return token.replace("▁", " ").encode()


def _valid(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@cache
def case_of(kind: str) -> Case:
    """Return the tokenizer of a kind, trained at the first call."""
    tokenizer = _build(kind)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return Case(kind, tokenizer)


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


def joined(stream: Detokenizer, ids: Sequence[int]) -> str:
    """Stream ids one by one to the end."""
    return "".join([stream.put(i) for i in ids]) + stream.flush()


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
        for _ in range(rng.randrange(1, 9)):
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
