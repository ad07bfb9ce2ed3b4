"""Turn token ids into exact text, step by step.

The joined text equals what the tokenizer would decode at the end. Each character comes out at the
step that completes it and is never taken back. Knows nothing of models, streams or tensors.

With a known decoder (`token_pieces`), a token costs one dictionary look-up and, for a character
spread over several tokens, one incremental UTF-8 decoding; the tokenizer is not called. With an
unknown one (`window_decoder`), a short window of ids is decoded for each token.
"""

from __future__ import annotations

import codecs
import copy
import weakref
from typing import TYPE_CHECKING, Any

from streamers.token_pieces import OpenPiece, PieceTable, parse
from streamers.window_decoder import WindowDecoder

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


class Detokenizer:
    """Incremental decoding of one sequence of token ids.

    With `prompt_ids`, the joined text is that of `decode(prompt_ids + ids)` after the complete
    characters of `decode(prompt_ids)`; without, it is `decode(ids)`. Where a byte-fallback
    vocabulary spells bytes that are not UTF-8, `decode` would rewrite text that was already out;
    there the result is that of incremental UTF-8 decoding with replacement.

    For a tokenizer with an unknown decoder, ids are decoded in windows of at most a few dozen. The
    text is then exact as far as the decoder looks no further than that, an incomplete character is
    recognised by U+FFFD at the end of the decoded text, and a run of more than four tokens that
    spell only invalid bytes comes out a few tokens late.

    `copy.copy` gives an independent detokenizer at the same place (beams). One thread at a time.
    """

    __slots__ = ("_decoder",)

    def __init__(
        self,
        tokenizer: Any,
        *,
        prompt_ids: Sequence[int] | None = None,
        skip_special_tokens: bool | None = True,
        **decode_kwargs: Any,
    ) -> None:
        """Args:
        tokenizer: A `tokenizers.Tokenizer`; an object that has one as `backend_tokenizer` or
            `_tokenizer`; or anything with `decode(ids, skip_special_tokens=…, **decode_kwargs)`.
            Tokens added later are noticed by the next detokenizer if the vocabulary has grown.
        prompt_ids: Ids before the first one that is put.
        skip_special_tokens: Leave special tokens out of the text; None for the default of `decode`.
        decode_kwargs: Further arguments of the tokenizer's `decode`.
        """
        table = _table_for(tokenizer, skip_special_tokens, decode_kwargs)
        self._decoder: _PieceDecoder | WindowDecoder
        if table is not None:
            self._decoder = _PieceDecoder(table, tokenizer, prompt_ids or ())
        else:
            if skip_special_tokens is not None:
                decode_kwargs["skip_special_tokens"] = skip_special_tokens
            self._decoder = WindowDecoder(tokenizer, decode_kwargs, prompt_ids or ())

    def put(self, ids: int | Sequence[int]) -> str:
        """Take the next token id or ids.

        Returns:
            The characters that they complete, possibly none.

        Raises:
            ValueError: An id is negative or does not fit 32 bits. Ids outside the vocabulary
                contribute nothing, as in `decode`.
        """
        return self._decoder.put((ids,) if isinstance(ids, int) else ids)

    def flush(self) -> str:
        """Return the tail at the end of the sequence: an incomplete character as U+FFFD."""
        return self._decoder.flush()

    def __copy__(self) -> Detokenizer:
        twin = object.__new__(type(self))
        twin._decoder = copy.copy(self._decoder)
        return twin


class _PieceDecoder:
    """Looks pieces up and joins them; its state is a few immutable values."""

    __slots__ = (
        "_left",
        "_owed",
        "_pieces",
        "_pipeline",
        "_plain",
        "_rest",
        "_table",
        "_tail",
        "_tokenizer",
    )

    def __init__(
        self, table: PieceTable, tokenizer: object, prompt_ids: Sequence[int] = ()
    ) -> None:
        self._table = table
        self._tokenizer = tokenizer  # the table refers to it weakly
        self._pipeline = table.pipeline
        self._pieces = table.first
        self._left = table.pipeline.strip[1]  # characters that may still be stripped
        self._tail = b""  # bytes of an incomplete character
        self._owed = ""  # goes out with the next token
        self._rest = ""  # goes out instead if no token follows
        # Nothing is held and all pieces come from `table.rest`: a piece of text goes out as it is.
        self._plain = not self._left and table.first is table.rest
        if prompt_ids:
            self._read_prompt(prompt_ids)

    def put(self, token_ids: Sequence[int]) -> str:
        text = ""
        for token_id in token_ids:
            piece = self._pieces[token_id]
            if self._plain and isinstance(piece, str):
                text += piece
            elif piece is not None:
                text += self._join(piece)
        return text

    def flush(self) -> str:
        if self._plain:
            return ""
        text, self._tail = self._decode(self._tail, final=True), b""
        text = self._strip(text) + self._rest
        self._owed = self._rest = ""
        self._note_plain()
        return text

    def _note_plain(self) -> None:
        held = self._tail or self._owed or self._rest or self._left
        self._plain = not held and self._pieces is self._table.rest

    def _join(self, piece: str | bytes | OpenPiece) -> str:
        self._pieces = self._table.rest
        if isinstance(piece, OpenPiece):
            text = self._owed + piece.now
            self._owed, self._rest = piece.more, piece.last
        elif isinstance(piece, bytes):
            text = self._decode(self._tail + piece, final=False)
        else:
            text = self._owed + piece
            self._owed = self._rest = ""
            if piece and self._tail:  # whole characters follow, so the one before stays incomplete
                text = self._decode(self._tail, final=True) + text
                self._tail = b""
        text = self._strip(text)
        self._note_plain()
        return text

    def _decode(self, data: bytes, *, final: bool) -> str:
        text, used = codecs.utf_8_decode(data, "replace", final)
        self._tail = data[used:]
        return self._pipeline.replace(text)

    def _strip(self, text: str) -> str:
        if not (self._left and text):
            return text
        stripped = text.lstrip(self._pipeline.strip[0])
        cut = min(len(text) - len(stripped), self._left)
        self._left = 0 if stripped else self._left - cut
        return text[cut:]

    def _read_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Get into the state after the prompt: its beginning and its end are enough."""
        at = 0
        while at < len(prompt_ids) and (self._pieces is not self._table.rest or self._left):
            self.put(prompt_ids[at : at + 1])
            at += 1
        # At most three bytes show an incomplete character, and one token an open piece.
        start, seen = len(prompt_ids), 0
        while start > at and seen < 4:
            start -= 1
            piece = self._pieces[prompt_ids[start]]
            seen += len(piece) if isinstance(piece, bytes) else 4 * bool(piece)
        if start > at:
            self._tail, self._owed, self._rest = b"", "", ""
        self.put(prompt_ids[start:])
        if not self._plain:
            # The prompt's text ended with `_rest`; the owed text begins after as many characters.
            self._owed, self._rest = self._owed[len(self._rest) :], ""
            self._note_plain()


# tokenizer -> (state of its decoder -> table, or None where windows are needed)
_TABLES: weakref.WeakKeyDictionary[Any, dict[Hashable, PieceTable | None]] = (
    weakref.WeakKeyDictionary()
)


def _table_for(tokenizer: Any, skip: bool | None, kwargs: dict[str, Any]) -> PieceTable | None:
    """Return the shared table of a tokenizer, or None if its text must be decoded in windows."""
    backend = _backend_of(tokenizer)
    if backend is None or kwargs.keys() - {"clean_up_tokenization_spaces"}:
        return None
    if skip is None:
        skip = tokenizer is backend  # the default of either `decode`
    try:
        decoder = backend.decoder
        state = b"null" if decoder is None else decoder.__getstate__()
    except Exception:  # a decoder written in Python has no description
        return None
    key: Hashable = (state, backend.get_vocab_size(), skip)
    try:
        tables = _TABLES.setdefault(backend, {})
        if key not in tables:
            tables[key] = _make_table(backend, state, skip)
        table = tables[key]
        if tokenizer is backend or table is None:
            return table
        cleaned = kwargs.get("clean_up_tokenization_spaces")
        if cleaned is None:
            cleaned = getattr(tokenizer, "clean_up_tokenization_spaces", False)
        key = (key, bool(cleaned))
        known = _TABLES.setdefault(tokenizer, {})
        if key not in known:
            agrees = _agrees(tokenizer, backend, table, skip, kwargs, bool(cleaned))
            known[key] = table if agrees else None
        return known[key]
    except TypeError:  # cannot be hashed or weakly referred to, so nothing can be shared
        return None


def _backend_of(tokenizer: Any) -> Any:
    needed = ("id_to_token", "get_added_tokens_decoder", "get_vocab_size", "decoder")
    for name in ("", "backend_tokenizer", "_tokenizer"):
        candidate = getattr(tokenizer, name, None) if name else tokenizer
        if all(hasattr(candidate, attribute) for attribute in needed):
            # An instance attribute `decode` hides the one whose behaviour is known.
            return None if "decode" in getattr(candidate, "__dict__", {}) else candidate
    return None


def _make_table(backend: Any, state: bytes, skip: bool) -> PieceTable | None:
    pipeline = parse(state)
    if pipeline is None:
        return None
    added = backend.get_added_tokens_decoder().values()
    skipped = frozenset(token.content for token in added if token.special) if skip else frozenset()
    return PieceTable(pipeline, weakref.ref(backend), skipped)


def _agrees(
    tokenizer: Any,
    backend: Any,
    table: PieceTable,
    skip: bool,
    kwargs: dict[str, Any],
    cleaned: bool,
) -> bool:
    """Tell whether a wrapper's `decode` gives the text of its backend, on a few sequences."""
    size = backend.get_vocab_size()
    spread = [size * k // 16 for k in range(16)]
    probes = [spread[k : k + 4] for k in range(0, 16, 4)]
    if cleaned:
        # Some wrappers have the option set and ignore it: try it.
        probes.append(backend.encode("a . b ? c , d", add_special_tokens=False).ids)
        if " ." not in backend.decode(probes[-1]):
            return False
    for ids in probes:
        decoder = _PieceDecoder(table, tokenizer)
        text = decoder.put(ids) + decoder.flush()
        if "\ufffd" in text:  # invalid bytes: `decode` may see them otherwise
            continue
        if tokenizer.decode(ids, skip_special_tokens=skip, **kwargs) != text:
            return False
    return True
