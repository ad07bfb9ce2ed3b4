"""Tokenizers of every kind, trained on the spot, and what their text must be."""

from __future__ import annotations

import codecs
import json
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
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        values = {c: ord(c) if ord(c) < 256 else -1 for c in alphabet}
        shifted = iter(b for b in range(256) if b not in values.values())
        values = {c: v if v >= 0 else next(shifted) for c, v in values.items()}
        spelled = b""
        for token_id in ids:
            token = self.tokenizer.id_to_token(token_id)
            if token is None or (skip and token in SPECIAL):
                continue
            if self.kind == "byte_level":
                known = all(c in values for c in token)
                spelled += bytes(values[c] for c in token) if known else token.encode()
            elif len(token) == 6 and token.startswith("<0x"):
                spelled += bytes.fromhex(token[3:5])
            else:
                spelled += token.replace("▁", " ").encode()
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
