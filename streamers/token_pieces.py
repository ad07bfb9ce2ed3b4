"""Compute the piece of text or bytes that each token id adds to a text.

The decoder of a `tokenizers.Tokenizer` is read once and turned into a function from one token to
its piece: text, or bytes where a character may be spread over several tokens. Pieces are made when
an id is first met and shared by every stream over the same tokenizer. A decoder whose pieces depend
on more than "is it the first" and "is it the last token" is not supported: `parse` returns None,
and the caller decodes windows instead.

The rules were read off the behaviour of tokenizers 0.23 and are held to it by fuzzing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class OpenPiece(NamedTuple):
    """A piece that reads differently when another token follows it.

    Attributes:
        now: Text that is certain.
        more: Text after `now` once another token follows.
        last: Text after `now` if no token follows.
    """

    now: str
    more: str
    last: str


Piece = str | bytes | OpenPiece | None
"""Text of whole characters, bytes that are not, an open piece, or None: no token at all."""


@dataclass(slots=True)
class Pipeline:
    """A decoder, split into the steps on each token and the steps on the text.

    Attributes:
        maps: Applied in order to each token: (token, is it the first, is it the last) -> text.
        to_bytes: Turns the mapped token into bytes; None if its text is final.
        replaced: (character, replacement) pairs, applied in order to the decoded text.
        strip: (character, count): up to so many of them are dropped at the beginning of the text.
        first_differs: The first token of a text has another piece than later ones.
        last_differs: The last token has another piece than earlier ones.
    """

    maps: list[Callable[[str, bool, bool], str]] = field(default_factory=list)
    to_bytes: Callable[[str], bytes] | None = None
    replaced: list[tuple[str, str]] = field(default_factory=list)
    strip: tuple[str, int] = ("", 0)
    first_differs: bool = False
    last_differs: bool = False

    def mapped(self, token: str, first: bool, last: bool) -> str:
        """Return the text of a token, before `to_bytes`."""
        for token_map in self.maps:
            token = token_map(token, first, last)
        return token

    def replace(self, text: str) -> str:
        """Apply the replacements of the decoded text."""
        for old, new in self.replaced:
            text = text.replace(old, new)
        return text

    def piece(self, token: str, first: bool) -> str | bytes | OpenPiece:
        """Return the piece of a token."""
        text = self.mapped(token, first, False) if self.maps else token
        if self.last_differs:
            return self._open(text, self.mapped(token, first, True))
        if self.to_bytes is None:
            return self.replace(text)
        data = self.to_bytes(text)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return data
        return self.replace(text) if self.replaced else text

    def _open(self, more: str, last: str) -> str | OpenPiece:
        more, last = self.replace(more), self.replace(last)
        if more == last:
            return more
        same = next(
            (i for i, (a, b) in enumerate(zip(more, last, strict=False)) if a != b),
            min(len(more), len(last)),
        )
        return OpenPiece(more[:same], more[same:], last[same:])


class Backend(Protocol):
    """The part of a `tokenizers.Tokenizer` that pieces are made from."""

    def id_to_token(self, token_id: int, /) -> str | None: ...


class PieceTable:
    """Pieces by token id for one tokenizer and one way of treating special tokens.

    Attributes:
        pipeline: The decoder.
        rest: id -> piece, for every token but the first. An id that is skipped has an empty
            piece; or None, for no token at all, where the last token has another piece.
        first: The same for the first token; an id that is skipped has None, because the token
            after it is still the first. The same object as `rest` where there is no difference.
    """

    def __init__(
        self, pipeline: Pipeline, backend: Callable[[], Backend | None], skipped: frozenset[str]
    ) -> None:
        """Args:
        pipeline: The decoder.
        backend: Weak reference to the tokenizer, which may hold the table.
        skipped: Tokens that do not appear in the text.
        """
        self.pipeline = pipeline
        self.rest: dict[int, Piece] = _Memo(pipeline, backend, skipped, False)
        self.first: dict[int, Piece] = self.rest
        if pipeline.first_differs:
            self.first = _Memo(pipeline, backend, skipped, True)


class _Memo(dict[int, Piece]):
    """Makes a piece when it is first asked for; a plain dictionary look-up ever after."""

    __slots__ = ("backend", "first", "nothing", "pipeline", "skipped")

    def __init__(
        self,
        pipeline: Pipeline,
        backend: Callable[[], Backend | None],
        skipped: frozenset[str],
        first: bool,
    ) -> None:
        self.pipeline = pipeline
        self.backend = backend
        self.skipped = skipped
        self.first = first
        # A first token is still to come, or the token before is still the last one.
        self.nothing: Piece = None if first or pipeline.last_differs else ""

    def __missing__(self, token_id: int) -> Piece:
        backend = self.backend()
        try:
            token = None if backend is None else backend.id_to_token(token_id)
        except OverflowError as error:
            raise ValueError(f"ids: {token_id} is not between 0 and 2**32 - 1") from error
        piece: Piece = self.nothing
        if token is not None and token not in self.skipped:
            piece = self.pipeline.piece(token, self.first)
        self[token_id] = piece
        return piece


def parse(state: bytes | str) -> Pipeline | None:
    """Read a decoder as tokenizers serialises it.

    Args:
        state: JSON of the decoder, `null` if the tokenizer has none.

    Returns:
        The pipeline, or None for a decoder that is not supported.
    """
    spec = json.loads(state)
    if spec is None:
        return Pipeline(maps=[_join_with_space], first_differs=True)
    builder = _Builder()
    return builder.build() if all(map(builder.add, _flat_specs(spec))) else None


def _flat_specs(spec: dict[str, Any]) -> list[dict[str, Any]]:
    if spec.get("type") != "Sequence":
        return [spec]
    return [stage for inner in spec["decoders"] for stage in _flat_specs(inner)]


class _Builder:
    """Collects the stages of a decoder; `add` returns whether the stage is supported.

    A decoder works on a list: of tokens first, then of tokens and decoded byte runs, at last of
    one text. `scope` is the current one: "tokens", "runs" or "text".
    """

    def __init__(self) -> None:
        self.scope = "tokens"
        self.pipeline = Pipeline()

    def build(self) -> Pipeline | None:
        made = self.pipeline
        if made.last_differs and (made.to_bytes is not None or len(made.maps) > 1):
            return None
        return made

    def add(self, stage: dict[str, Any]) -> bool:
        kind = stage.get("type")
        if kind == "Fuse":
            self.scope = "text"
            return True
        if kind == "Replace":
            return self._add_replace(stage)
        if kind == "Strip":
            return self._add_strip(stage["content"], stage["start"], stage["stop"])
        if self.scope != "tokens":
            return False
        return self._add_token_stage(str(kind), stage)

    def _add_token_stage(self, kind: str, stage: dict[str, Any]) -> bool:
        if kind == "ByteLevel":
            self.pipeline.to_bytes, self.scope = _byte_level, "text"
        elif kind == "ByteFallback":
            self.pipeline.to_bytes, self.scope = _byte_fallback, "runs"
        elif kind == "Metaspace":
            mark, strips = stage["replacement"], stage.get("prepend_scheme", "always") != "never"
            self.pipeline.maps.append(
                lambda token, first, last: token.replace(mark, "" if first and strips else " ")
            )
            self.pipeline.first_differs |= strips
        elif kind == "WordPiece":
            self.pipeline.maps.append(_word_piece(stage["prefix"], stage["cleanup"]))
            self.pipeline.first_differs = True
        elif kind == "BPEDecoder":
            suffix = stage["suffix"]
            self.pipeline.maps.append(
                lambda token, first, last: token.replace(suffix, "" if last else " ")
            )
            self.pipeline.last_differs = True
        else:
            return False
        return True

    def _add_replace(self, stage: dict[str, Any]) -> bool:
        old, new = stage["pattern"].get("String"), stage["content"]
        if not old:  # a regular expression
            return False
        if self.scope == "tokens":
            self.pipeline.maps.append(lambda token, first, last: token.replace(old, new))
            return True
        # In running text a longer pattern could lie across two tokens.
        self.pipeline.replaced.append((old, new))
        return len(old) == 1 and self.pipeline.strip == ("", 0)

    def _add_strip(self, char: str, start: int, stop: int) -> bool:
        if self.scope == "tokens":
            self.pipeline.maps.append(
                lambda token, first, last: _stripped(token, char, start, stop)
            )
            return True
        # Only the beginning of the whole text: its end is not known until the stream ends.
        fits = self.scope == "text" and stop == 0 and self.pipeline.strip == ("", 0)
        self.pipeline.strip = (char, start) if start else ("", 0)
        return fits


def _join_with_space(token: str, first: bool, last: bool) -> str:
    return token if first else " " + token


def _stripped(token: str, char: str, start: int, stop: int) -> str:
    begin, end = 0, len(token)
    while begin < min(start, end) and token[begin] == char:
        begin += 1
    while end > begin and len(token) - end < stop and token[end - 1] == char:
        end -= 1
    return token[begin:end]


# In this order, each over the result of the ones before.
_CLEANUP = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
]


def _word_piece(prefix: str, cleanup: bool) -> Callable[[str, bool, bool], str]:
    def apply(token: str, first: bool, last: bool) -> str:
        if not first:
            token = token[len(prefix) :] if token.startswith(prefix) else " " + token
        if cleanup:
            for old, new in _CLEANUP:
                token = token.replace(old, new)
        return token

    return apply


_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>", re.ASCII)


def _byte_fallback(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Return the bytes of the characters of byte-level vocabularies (GPT-2, 2019, `encoder.py`).

    A printable byte stands for itself, the others follow from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(others)
    }


_BYTES = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTES[char] for char in token])
    except KeyError:  # an added token, written as it is
        return token.encode()
