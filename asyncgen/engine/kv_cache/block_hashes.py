"""Hash blocks by their content, so that equal beginnings of texts are found. Plain Python.

The hash of a block covers everything that its content depends on: the salt (model, adapter) and
every token from the beginning of the text to the end of the block. Hashes form a chain: the next
one costs one block of tokens, however long the text is. Each cache group but the first appends its
number.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# A collision would show one request the text of another, so the length is cryptographic.
_HASH_BYTES = 32


def next_block_hash(before: bytes, tokens: Sequence[int]) -> bytes:
    """Hash a block, full or partial, from the hash of the blocks before it and its tokens."""
    return blake2b(before + array("q", tokens).tobytes(), digest_size=_HASH_BYTES).digest()


def group_hash(block_hash: bytes, group: int) -> bytes:
    """Return the hash of the block that a cache group holds for the same tokens."""
    return block_hash + group.to_bytes(2, "big") if group else block_hash


def block_hashes(tokens: Sequence[int], page_size: int, salt: bytes = b"") -> list[bytes]:
    """Hash the full blocks of a text.

    Args:
        tokens: Token ids from the beginning of the text.
        page_size: Tokens of a block, at least 1.
        salt: Everything else that the content depends on: the model, the adapter.

    Returns:
        One hash for each full block, in order.
    """
    hashes: list[bytes] = []
    extend_block_hashes(hashes, tokens, page_size, salt, len(tokens) // page_size)
    return hashes


def extend_block_hashes(
    hashes: list[bytes], tokens: Sequence[int], page_size: int, salt: bytes, count: int
) -> None:
    """Hash further blocks of the same text.

    Args:
        hashes: Hashes of its first blocks; the missing ones up to ``count`` are appended.
        tokens: Token ids from the beginning of the text, at least ``count`` blocks of them.
        page_size: Tokens of a block, at least 1.
        salt: Everything else that the content depends on; the same as for the other hashes.
        count: Number of blocks that need a hash.
    """
    if len(hashes) >= count:
        return
    last = hashes[-1] if hashes else blake2b(salt, digest_size=_HASH_BYTES).digest()
    for number in range(len(hashes), count):
        last = next_block_hash(last, tokens[number * page_size : (number + 1) * page_size])
        hashes.append(last)


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """Count the tokens that two texts have in common at the beginning."""
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return number
    return min(len(first), len(second))
