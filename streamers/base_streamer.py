"""Base classes of streamers: `put` and `end`, rows of a batch, the prompt, whole words.

Works under any `generate(streamer=…)` that calls `put` with tensors of token ids, first the prompt
and then generated ones, and `end` at the end. Needs no tensor library: values need a method
`tolist()`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Self

from streamers.detokenizer import Detokenizer
from streamers.word_buffer import WordBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence


class BaseStreamer(ABC):
    """Base class of all values for the argument `streamer` of `generate`."""

    @abstractmethod
    def put(self, value: Any) -> None:
        """Take token ids; called by `generate`, first with the prompt.

        Args:
            value: Integer tensor `[B, S]`, `[S]` or `[B]`.
        """

    @abstractmethod
    def end(self) -> None:
        """Take note that generation has ended; called by `generate`."""


class RowText(str):
    """Text that knows which row of the batch it belongs to.

    Attributes:
        row: Index of the row, 0 for a batch of one.
    """

    __slots__ = ("row",)
    row: int

    def __new__(cls, text: str = "", row: int = 0) -> Self:
        """Args:
        text: The text.
        row: Index of the row.
        """
        self = super().__new__(cls, text)
        self.row = row
        return self

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]
        """Keep the row in copies and pickles."""
        return str(self), self.row


class RowStreamer(BaseStreamer):
    """Turns what `generate` puts into text, row by row, as soon as whole words are formed.

    A row's text is that of decoding all its ids at once: those of prompt and answer together, or
    of the answer alone with `skip_prompt`. (The reference forgets everything before a newline, so
    that tokenizers which drop the space before the first word drop it after each newline too.)
    Rows that ended early are padded by `generate`; `skip_special_tokens=True` hides that.

    A subclass overrides `on_finalized_text` to use the text. After `end` the streamer
    is ready for another `generate`.
    """

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, **decode_kwargs: Any) -> None:
        """Args:
        tokenizer: Tokenizer that decodes the ids; see `Detokenizer`.
        skip_prompt: Leave the prompt out of the text.
        decode_kwargs: Further arguments of the tokenizer's `decode`, such as
            `skip_special_tokens`; or one dict of them, as `decode_kwargs=`.

        Raises:
            TypeError: `tokenizer` cannot decode, `skip_prompt` is a text, or `decode_kwargs=` is
                no dict.
        """
        if isinstance(skip_prompt, str | bytes):
            raise TypeError(f"skip_prompt={skip_prompt!r:.40} must be True or False")
        if not callable(getattr(tokenizer, "decode", None)):
            raise TypeError(f"tokenizer={type(tokenizer).__name__} must have a method decode(ids)")
        self.tokenizer = tokenizer
        self.skip_prompt = skip_prompt
        self.decode_kwargs = _joined_arguments(**decode_kwargs)
        self._rows: list[_RowDecoder] = []
        self._batch = 1  # rows of the latest prompt

    @abstractmethod
    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Take text of whole words; to be overridden.

        Args:
            text: A `RowText`, never empty unless `stream_end`.
            stream_end: True for the last text of all rows.
        """

    def put(self, value: Any) -> None:
        """Take token ids and pass on the text of the words that they finish.

        Args:
            value: Integer tensor (anything with `tolist()`) or nested sequence. The first one is
                the prompt, `[B, S]` or `[S]`; later ones are `[B]`, `[B, n]`, or `[n]` where the
                batch is one and several tokens arrive at once.

        Raises:
            ValueError: The number of rows is not that of the prompt.
        """
        values = value.tolist() if hasattr(value, "tolist") else value
        if not self._rows:
            prompts = _as_prompts(values)
            options = {"skip_special_tokens": None, **self.decode_kwargs}
            self._batch = len(prompts)
            self._rows = [
                _RowDecoder(row, Detokenizer(self.tokenizer, **options))
                for row in range(self._batch)
            ]
            if not self.skip_prompt:
                self._take(prompts)
        elif len(self._rows) == 1:
            self._take([_as_ids(values)])
        else:
            self._take(_as_columns(values, len(self._rows)))

    def end(self) -> None:
        """Pass on the text that was held back, the last of it with `stream_end`."""
        tails = self._finish() or [RowText()]
        for tail in tails[:-1]:
            if tail:
                self.on_finalized_text(tail)
        self.on_finalized_text(tails[-1], stream_end=True)

    def _take(self, ids: Sequence[int | Sequence[int]]) -> None:
        for row, row_ids in zip(self._rows, ids, strict=True):
            text = row.put(row_ids)
            if text:
                self.on_finalized_text(text)

    def _finish(self) -> list[RowText]:
        """Return the tails of all rows and forget the rows."""
        rows, self._rows = self._rows, []
        return [row.finish() for row in rows]


def _joined_arguments(**others: Any) -> dict[str, Any]:
    """Join arguments of `decode` with those in a dict, the form that the documents name."""
    listed = others.pop("decode_kwargs", None)
    if listed is not None and not isinstance(listed, dict):
        raise TypeError(f"decode_kwargs={listed!r} must be a dict of arguments of `decode`")
    return {**(listed or {}), **others}


class _RowDecoder:
    """One row of the batch: its detokenizer, and the word that is not finished."""

    __slots__ = ("_detokenizer", "_index", "_words")

    def __init__(self, index: int, detokenizer: Detokenizer) -> None:
        self._index = index
        self._detokenizer = detokenizer
        self._words = WordBuffer()

    def put(self, ids: int | Sequence[int]) -> RowText:
        return RowText(self._words.put(self._detokenizer.put(ids)), self._index)

    def finish(self) -> RowText:
        tail = self._words.put(self._detokenizer.flush()) + self._words.flush()
        return RowText(tail, self._index)


def _as_prompts(values: Any) -> list[Sequence[int]]:
    """Read the prompt: `[B, S]`, `[S]` or one id."""
    if isinstance(values, int):
        return [[values]]
    return list(values) if values and not isinstance(values[0], int) else [values]


def _as_ids(values: Any) -> int | Sequence[int]:
    """Read tokens of a batch of one: `[]`, `[n]` or `[1, n]`."""
    if isinstance(values, int) or not values or isinstance(values[0], int):
        return values
    if len(values) != 1:
        raise ValueError(f"value has {len(values)} rows, but the prompt had 1")
    return values[0]


def _as_columns(values: Any, rows: int) -> list[int | Sequence[int]]:
    """Read tokens of a batch: `[B]` or `[B, n]`."""
    given = 0 if isinstance(values, int) else len(values)
    if given != rows:
        raise ValueError(f"value has {given} rows, but the prompt had {rows}")
    return list(values)
