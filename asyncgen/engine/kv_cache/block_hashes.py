"""Names of pages, by what they contain. Plain Python over integers.

The key of a page is a hash of everything that its content depends on: the salt (model, adapter),
and every token from the beginning of the request to the end of the page, or to the last one that is
in it. The groups beside the first add their number. Keys form a chain, so the next one costs one
page of tokens, however long the request is.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# A collision would show one request the text of another, so this is a cryptographic length.
_KEY_BYTES = 32


def next_block_hash(key: bytes, tokens: Sequence[int]) -> bytes:
    """Name of the page with these tokens, full or not, behind what a key names."""
    page = array("q", tokens)
    return blake2b(key + page.tobytes(), digest_size=_KEY_BYTES).digest()


def group_hash(key: bytes, group: int) -> bytes:
    """Name of the page that a group has for what a key names (see `block_hashes`)."""
    return key + group.to_bytes(2, "big") if group else key


def block_hashes(tokens: Sequence[int], page_size: int, salt: bytes = b"") -> list[bytes]:
    """Name the full pages of a request.

    Args:
        tokens: Token ids from the beginning of the request.
        page_size: Tokens of a page, at least 1.
        salt: What else the content depends on: the model, the adapter.

    Returns:
        One key for each full page, in order; the rest of the tokens has none.
    """
    keys: list[bytes] = []
    extend_block_hashes(keys, tokens, page_size, salt, len(tokens) // page_size)
    return keys


def extend_block_hashes(
    keys: list[bytes], tokens: Sequence[int], page_size: int, salt: bytes, count: int
) -> None:
    """Name further pages of the same request.

    Args:
        keys: Keys of its first pages; those that are missing up to ``count`` are appended.
        tokens: Token ids from the beginning of the request, at least ``count`` pages of them.
        page_size: Tokens of a page, at least 1.
        salt: What else the content depends on; the same as for the other keys.
        count: How many pages shall have a key. Nothing happens if they have it.
    """
    if len(keys) >= count:
        return
    last = keys[-1] if keys else blake2b(salt, digest_size=_KEY_BYTES).digest()
    for number in range(len(keys), count):
        last = next_block_hash(last, tokens[number * page_size : (number + 1) * page_size])
        keys.append(last)


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two texts have in common at the beginning."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return number
    return min(len(first), len(second))
