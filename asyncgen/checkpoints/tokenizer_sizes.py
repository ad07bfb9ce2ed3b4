"""Bound what the library of `tokenizers` takes to build a tokenizer.

It holds the interpreter meanwhile and cannot be stopped: nothing else of the process runs, and
nobody can leave. On one core of 2 GHz each bound is about a second; the largest tokenizers of real
models have a quarter to a half of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from asyncgen.errors import ModelLoadError
from asyncgen.runtime.wanted import require_wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_TOKENS: Final = 1_048_576
"""Tokens of a model; the largest vocabularies of models that generate have 262,144."""

MOST_PARTS: Final = 1_048_576
"""Tokens and merges of a model together; Gemma has 777,000."""

MOST_BYTES: Final = 16 * 1024 * 1024
MOST_NODES: Final = 3_000_000
"""Bytes of the pieces of a unigram model, and of the tree that the library makes of them, in which
pieces that begin alike share their beginning. The largest pieces of real models have 3 MB."""

MOST_ADDED: Final = 262_144
MOST_TEXT_ADDED: Final = 4 * 1024 * 1024
"""Added tokens, and characters of all of them, of which the library makes one search tree."""


def check_size(place: object, tokens: int, merges: int = 0) -> None:
    """Refuse more tokens and merges than any model has.

    Args:
        place: The file, for messages.
        tokens: Tokens of its model.
        merges: Merges of its model.

    Raises:
        ModelLoadError: Says how many there are.
    """
    if tokens > MOST_TOKENS:
        raise ModelLoadError(f"{place}: its model has {tokens} tokens; at most {MOST_TOKENS}")
    if tokens + merges > MOST_PARTS:
        raise ModelLoadError(
            f"{place}: its model has {tokens} tokens and at least {merges} merges; at most "
            f"{MOST_PARTS} together"
        )


def check_tree(place: object, pieces: Sequence[str]) -> None:
    """Refuse pieces of a unigram model of which the library would make too large a tree.

    Args:
        place: The file, for messages.
        pieces: The pieces.

    Raises:
        ModelLoadError: Says how large it would be.
        UnwantedError: Nobody waits any more.
    """
    size = len("".join(pieces).encode(errors="replace"))
    if size > MOST_BYTES:
        raise ModelLoadError(
            f"{place}: the pieces of its model have {size} bytes; at most {MOST_BYTES}"
        )
    if size <= MOST_NODES:
        return
    texts = [piece.encode(errors="replace") for piece in pieces]
    nodes = length = 0
    while texts:
        require_wanted()
        length += 1
        nodes += len({text[:length] for text in texts})
        texts = [text for text in texts if len(text) > length]
        if nodes > MOST_NODES:
            raise ModelLoadError(
                f"{place}: the pieces of its model have more than {MOST_NODES} different "
                f"beginnings; at most so many are read"
            )


def check_added(place: object, tokens: int, characters: int = 0) -> None:
    """Refuse more added tokens than any model has.

    Args:
        place: The file, for messages.
        tokens: Added tokens.
        characters: Characters of all of them.

    Raises:
        ModelLoadError: Says how many there are, or how long they are.
    """
    if tokens > MOST_ADDED:
        raise ModelLoadError(f"{place} has {tokens} added tokens; at most {MOST_ADDED} are read")
    if characters > MOST_TEXT_ADDED:
        raise ModelLoadError(
            f"{place}: its added tokens have {characters} characters; at most {MOST_TEXT_ADDED}"
        )
