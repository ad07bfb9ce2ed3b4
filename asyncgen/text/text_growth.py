"""Bound by how much the steps of a tokenizer may lengthen a text.

A step that makes two letters of one is harmless; sixty of them in a row make 2**60. The bound is
in bytes of UTF-8, for the worst text, and is computed from the description of the steps alone.
"""

from __future__ import annotations

import base64
import binascii
import json
import unicodedata
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from asyncgen.checkpoints.charsmap import charsmap_growth
from asyncgen.errors import ModelLoadError, shorten
from asyncgen.text.known_patterns import KNOWN_PATTERNS, SHORTEST_MATCHES
from asyncgen.text.tokenizer_parts import kind_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_WORK: Final = 128
"""Characters that the steps of a chain read for one of a text; those of real tokenizers: 90."""

MOST_GROWTH: Final = 48
"""Most bytes that may come of one; real tokenizers: 11 by NFKC, 12 by SentencePiece's steps."""

MOST_ADDED: Final = 64
"""Tokens that the steps behind the model may add to a text; real ones add up to a handful."""

_FORMS: Final = {"NFC": 3.0, "NFD": 3.0, "NFKC": 11.0, "NFKD": 11.0}
_LOWER: Final = 1.5
_BERT: Final = 5.0


def check_growth(place: object, state: Mapping[str, Any]) -> None:
    """Refuse steps that may lengthen a text without measure.

    Args:
        place: File of the tokenizer.
        state: Content of ``tokenizer.json``, or those parts of it that there are.

    Raises:
        ModelLoadError: Names the step with which the bound is passed.
    """
    for chain, factor_of in (
        ("pre_tokenizer", _of_pre_tokenizer),
        ("post_processor", _of_post_processor),
        ("decoder", _of_decoder),
    ):
        growth, work = 1.0, 0.0
        for part in parts_of(state.get(chain)):
            work += growth
            growth *= factor_of(part)
            _refuse_beyond(place, chain, part, growth)
        _refuse_work(place, chain, work)
    _check_normalizer(place, state.get("normalizer"))
    _check_added(place, state.get("post_processor"))


def _refuse_beyond(place: object, chain: str, part: Mapping[str, Any], growth: float) -> None:
    if growth > MOST_GROWTH:
        raise ModelLoadError(
            f"{place}: with the step {kind_of(part)[:80]!r} of `{chain}` a text may become "
            f"{growth:.3g} times as long; at most {MOST_GROWTH} times is read"
        )


def _refuse_work(place: object, chain: str, work: float) -> None:
    if work > MOST_WORK:
        raise ModelLoadError(
            f"{place}: the steps of `{chain}` may read {work:.3g} characters for one of a text; "
            f"at most {MOST_WORK}"
        )


def _check_normalizer(place: object, normalizer: object) -> None:
    """Multiply what each step may add; where that is too much, look at the letters that grow."""
    written = letters = 1.0
    is_new = True  # whether there may be letters that a normal form takes apart
    forms = 1.0
    work = 0.0
    parts = list(parts_of(normalizer))
    for part in parts:
        work += min(written * letters, MOST_GROWTH)
        kind = kind_of(part)
        if kind in _FORMS:
            letters *= _FORMS[kind] / forms if is_new or _FORMS[kind] > forms else 1.0
            forms, is_new = max(forms, _FORMS[kind]), False
        elif kind in ("Lowercase", "BertNormalizer"):
            letters *= _LOWER if kind == "Lowercase" else _BERT
        else:
            written *= _of_written(part)
            if kind == "Precompiled" or _comes_apart(part):
                forms, is_new = 1.0, True
        _refuse_beyond(place, "normalizer", part, written)
        if letters > MOST_GROWTH**2:
            _refuse_beyond(place, "normalizer", part, written * letters)
    if parts and written * letters > MOST_GROWTH:
        _refuse_beyond(place, "normalizer", parts[-1], _measured(parts))
    _refuse_work(place, "normalizer", work)


def _check_added(place: object, post_processor: object) -> None:
    added = 0.0
    for part in parts_of(post_processor):
        tokens = part.get("special_tokens") or {}
        for name in (*_named_in(part, "single"), *_named_in(part, "pair")):
            if name not in tokens:
                raise ModelLoadError(
                    f"{place}: a template of `post_processor` puts in {shorten(name)}, which is "
                    "not in its `special_tokens`"
                )
        added = added * _of_post_processor(part) + _added_by(part)
        if added > MOST_ADDED:
            raise ModelLoadError(
                f"{place}: with the step {kind_of(part)[:80]!r} of `post_processor` {added:.0f} "
                f"tokens are added to a text; at most {MOST_ADDED} are"
            )


def _added_by(part: Mapping[str, Any]) -> int:
    """Count the tokens that a step puts around a text, or around two."""
    if kind_of(part) in ("BertProcessing", "RobertaProcessing"):
        return 2
    if kind_of(part) != "TemplateProcessing":
        return 0
    tokens = part.get("special_tokens") or {}
    return max(
        sum(len(tokens.get(name, {}).get("ids") or ()) for name in _named_in(part, key))
        for key in ("single", "pair")
    )


def _named_in(part: Mapping[str, Any], key: str) -> list[str]:
    """Return the names of special tokens in a template."""
    pieces = (each.get("SpecialToken") for each in part.get(key) or ())
    return [piece["id"] for piece in pieces if piece]


def _of_written(part: Mapping[str, Any]) -> float:
    """Return the growth by a step of a normaliser that puts in what the file says."""
    kind = kind_of(part)
    if kind == "Prepend":
        return 1.0 + _size(part.get("prepend"))  # before each part between special tokens
    if kind == "ByteLevel":
        return 2.0
    if kind == "Precompiled":
        return charsmap_growth(charsmap_of(part))
    return _of_replace(part) if kind == "Replace" else 1.0


def _of_replace(part: Mapping[str, Any]) -> float:
    pattern, new = part.get("pattern"), _size(part.get("content"))
    old = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(old, str) and old:
        return max(1.0, new / _size(old))
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    if regex in KNOWN_PATTERNS:
        return max(1.0, new / SHORTEST_MATCHES.get(regex, 1))
    return 1.0 + new  # it may match nothing, which is between any two letters


def _of_pre_tokenizer(part: Mapping[str, Any]) -> float:
    kind = kind_of(part)
    if kind == "ByteLevel":
        return 3.0 if part.get("add_prefix_space") else 2.0
    return 1.0 + _size(part.get("replacement", "\u2581")) if kind == "Metaspace" else 1.0


def _of_post_processor(part: Mapping[str, Any]) -> float:
    """Count how often a template repeats the text."""
    single = part.get("single")
    if kind_of(part) != "TemplateProcessing" or not isinstance(single, list):
        return 1.0
    return max(1.0, sum(isinstance(each, dict) and "Sequence" in each for each in single))


def _of_decoder(part: Mapping[str, Any]) -> float:
    kind = kind_of(part)
    if kind == "ByteLevel":
        return 3.0  # a byte that is no text becomes the sign for that
    if kind in ("WordPiece", "BPEDecoder", "CTC"):
        return 2.0  # a space
    return _of_replace(part) if kind == "Replace" else 1.0


def _comes_apart(part: Mapping[str, Any]) -> bool:
    """Tell whether a step puts in letters that a normal form takes apart."""
    texts = (part.get("content"), part.get("prepend"))
    return any(
        isinstance(text, str) and unicodedata.normalize("NFKD", text) != text for text in texts
    )


def _size(text: object) -> int:
    return len(text.encode(errors="surrogatepass")) if isinstance(text, str) else 0


def charsmap_of(part: Mapping[str, Any]) -> bytes:
    """Return the rules of a step of SentencePiece; none if they are no base64."""
    try:
        return base64.b64decode(part.get("precompiled_charsmap") or "", validate=True)
    except (binascii.Error, ValueError):
        return b""


def _measured(parts: Sequence[Mapping[str, Any]]) -> float:
    """Return the growth of those letters that any step may lengthen, by the library itself."""
    whole = json.loads(Backend(BPE()).to_str())
    whole["normalizer"] = {"type": "Sequence", "normalizers": [*parts]}
    normalizer = Backend.from_str(json.dumps(whole)).normalizer
    written = "".join(
        str(each)
        for part in parts
        for each in (part.get("content"), part.get("prepend"), part.get("pattern"))
    )
    letters = {*growing_letters(), *(letter for letter in written if not _is_half(letter))}
    return max(
        len(normalizer.normalize_str(letter).encode()) / len(letter.encode()) for letter in letters
    )


def _is_half(letter: str) -> bool:
    return 0xD800 <= ord(letter) < 0xE000


@cache
def growing_letters() -> frozenset[str]:
    """Return the letters that a normal form or a change of case may lengthen."""
    normalize = unicodedata.normalize
    letters = (chr(code) for code in range(0x80, 0x30000) if not 0xAC00 <= code < 0xE000)
    return frozenset(
        letter
        for letter in letters
        if max(len(normalize("NFKD", letter).encode()), len(letter.lower().encode()))
        > len(letter.encode())
    )
