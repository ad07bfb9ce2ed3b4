"""Finds stop strings at the end of token sequences, byte by byte.

Tokens are compared as the bytes that they add to a text, so that a character spread over several
byte-level tokens is found like any other. The bytes of a token are worked out when it is first
seen. Knows nothing of tensors but how to read a row of one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
_ANCHOR = "abcdef"
"""Decoded before each token, so that the first of a text is not treated in its special way."""


def _byte_alphabet() -> dict[str, int]:
    """Return the characters that stand for bytes in byte-level vocabularies.

    Printable bytes of Latin-1 stand for themselves; the others follow, in order, from U+0100 on
    (Radford et al. 2019, section 2.2, and the code published with it).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + rank): byte for rank, byte in enumerate(others)})
    return alphabet


class TokenBytes(dict[int, bytes]):
    """The bytes that each token of a tokenizer adds to a text, of those that were asked for."""

    def __init__(self, tokenizer: Any) -> None:
        """Learn the kind of vocabulary.

        Args:
            tokenizer: A tokenizer of this package, of transformers, or of tokenizers.
        """
        # Most tokenizers wrap one of tokenizers, whose decoding is the plain one.
        self._tokenizer = tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        has: Callable[[str], bool]
        if hasattr(tokenizer, "token_to_id") and hasattr(tokenizer, "id_to_token"):
            # Not its vocabulary: the library holds the process while it makes a copy.
            self._token: Callable[[int], str | None] = tokenizer.id_to_token
            has = lambda token: tokenizer.token_to_id(token) is not None  # noqa: E731
        else:
            vocabulary = tokenizer.get_vocab()
            self._token = {number: token for token, number in vocabulary.items()}.get
            has = vocabulary.__contains__
        alphabet = _byte_alphabet()
        self._alphabet = alphabet if all(map(has, alphabet)) else None
        self._has_fallback = all(has(f"<0x{byte:02X}>") for byte in range(256))
        encoded = tokenizer.encode(_ANCHOR, add_special_tokens=False)
        self._anchor: list[int] = list(getattr(encoded, "ids", encoded))
        self._anchor_text = self._decode(self._anchor)

    def __missing__(self, token_id: int) -> bytes:
        """Work out the bytes of a token; none for an id that the vocabulary does not have."""
        found = self[token_id] = self._work_out(token_id)
        return found

    def _work_out(self, token_id: int) -> bytes:
        token = self._token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self._has_fallback and (match := _FALLBACK.fullmatch(token)):
            return bytes([int(match[1], 16)])
        text = self._decode([*self._anchor, token_id])
        if text.startswith(self._anchor_text) and "\ufffd" not in text:
            return text[len(self._anchor_text) :].encode()
        if self._alphabet is not None and all(character in self._alphabet for character in token):
            return bytes(self._alphabet[character] for character in token)
        return token.encode()

    def _decode(self, token_ids: list[int]) -> str:
        join = getattr(self._tokenizer, "convert_tokens_to_string", None)
        if join is not None:
            return join([self._token(token_id) for token_id in token_ids])
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


class StopStringMatcher:
    """Tells whether a sequence of tokens ends in a stop string.

    Attributes:
        reach: How many tokens at the end of a sequence are usually enough to decide.
    """

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str]) -> None:
        """Prepare the strings.

        Args:
            tokenizer: A tokenizer of this package, of transformers, or of tokenizers.
            stop_strings: The strings.

        Raises:
            InvalidRequestError: There is none, or one is empty or no string.
        """
        if not stop_strings or not all(isinstance(each, str) and each for each in stop_strings):
            raise InvalidRequestError(
                "stop_strings", stop_strings, "must be non-empty strings; leave it out for none"
            )
        self._stops = [each.encode() for each in stop_strings]
        self.reach = max(map(len, self._stops))
        self._bytes = TokenBytes(tokenizer)

    def ends_with_stop(self, tail: list[int], row: int, input_ids: Any) -> bool:
        """Tell whether the newest token completes or overlaps the end of a stop string.

        Args:
            tail: The newest `reach` tokens of the sequence, or all where it has fewer.
            row: Its row in ``input_ids``.
            input_ids: All tokens, [B, T]; read only where tokens without text use up the tail.

        Returns:
            True if a stop string ends inside of the newest token.
        """
        last = self._bytes[tail[-1]]
        if not last:
            return False
        needed = self.reach - 1
        before = self._before(tail[:-1], needed)
        if len(before) < needed and input_ids.shape[-1] > len(tail):
            before = self._before(input_ids[row, :-1].tolist(), needed)
        return any(
            stop in before[max(0, len(before) - len(stop) + 1) :] + last for stop in self._stops
        )

    def _before(self, token_ids: list[int], needed: int) -> bytes:
        """Return at least ``needed`` bytes of text before the newest token, if there are."""
        parts: list[bytes] = []
        length = 0
        for token_id in reversed(token_ids):
            if length >= needed:
                break
            parts.append(self._bytes[token_id])
            length += len(parts[-1])
        return b"".join(reversed(parts))
