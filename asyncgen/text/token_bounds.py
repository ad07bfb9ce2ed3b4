"""Compute the least number of tokens that a text can have, without tokenizing it.

If the tokenizer keeps every byte of a text, no token stands for more bytes than the longest one of
the vocabulary. If one of its steps may drop or shorten text, there is no bound.
"""

from __future__ import annotations

import json
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


_NORMAL_FORM = 4
"""No text has more than 3 times the bytes of a normal form (U+212A, Hangul); 1 more to be safe."""

_ALPHABET = 256

_longest: weakref.WeakKeyDictionary[Backend, tuple[int, int | None]] = weakref.WeakKeyDictionary()
"""By tokenizer: size of the vocabulary when it was measured, and the result."""


def least_tokens(backend: Backend, text: str) -> int:
    """Return the least number of tokens that a text can have.

    Args:
        backend: The tokenizer; measured once, which takes as long as to write its vocabulary.
        text: The text.

    Returns:
        A number of tokens; 0 if there is no bound.
    """
    longest = longest_token(backend)
    if longest is None:
        return 0
    num_bytes = len(text.encode(errors="replace"))
    return -(-num_bytes // longest)


def longest_token(backend: Backend) -> int | None:
    """Return the most bytes of a text that become one token; ``None`` for no limit.

    Args:
        backend: As in `least_tokens`.
    """
    if backend.truncation is not None:
        return None
    size = backend.get_vocab_size()
    known = _longest.get(backend)
    if known is None or known[0] != size:
        known = _longest[backend] = size, _measured(json.loads(backend.to_str()), backend)
    return known[1]


def _measured(state: dict[str, Any], backend: Backend) -> int | None:
    factor = _shrinks(state["normalizer"])
    added = state["added_tokens"]
    keeps_all = (
        state["model"]["type"] == "BPE"
        and factor is not None
        and _keeps(state["pre_tokenizer"])
        and _knows_all(state["model"], state["pre_tokenizer"])
        # Such tokens absorb any number of spaces.
        and not any(token["lstrip"] or token["rstrip"] for token in added)
    )
    if factor is None or not keeps_all:
        return None
    return factor * max(len(token.encode()) for token in backend.get_vocab(True))


def _parts(step: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """List a step of the tokenizer, or the steps of a sequence."""
    if step is None:
        return []
    if step["type"] == "Sequence":
        return [part for one in step[name] for part in _parts(one, name)]
    return [step]


def _shrinks(normalizer: dict[str, Any] | None) -> int | None:
    """Return the most bytes of a text that normalization makes one of; ``None`` for no limit."""
    factor = 1
    for part in _parts(normalizer, "normalizers"):
        match part:
            case {"type": "NFC" | "NFD"}:
                factor *= _NORMAL_FORM
            case {"type": "Prepend" | "ByteLevel"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                if len(new.encode()) < len(old.encode()):
                    return None
            case _:
                return None
    return factor


def _keeps(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Tell whether the pre-tokenizer drops nothing of a text."""
    for part in _parts(pre_tokenizer, "pretokenizers"):
        match part:
            case {"type": "ByteLevel" | "Digits"}:
                pass
            case {"type": "Split", "behavior": str(behavior)} if behavior != "Removed":
                pass
            case {"type": "Metaspace", "replacement": " " | "▁"}:
                pass
            case _:
                return False
    return True


def _knows_all(model: dict[str, Any], pre_tokenizer: dict[str, Any] | None) -> bool:
    """Tell whether the vocabulary spells every text, so that nothing is dropped as unknown."""
    vocabulary = model["vocab"]
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return False  # then the characters alone do not spell a text
    if any(part["type"] == "ByteLevel" for part in _parts(pre_tokenizer, "pretokenizers")):
        from tokenizers.pre_tokenizers import ByteLevel

        return all(character in vocabulary for character in ByteLevel.alphabet())
    spelled = (f"<0x{byte:02X}>" in vocabulary for byte in range(_ALPHABET))
    return bool(model.get("byte_fallback")) and all(spelled)
