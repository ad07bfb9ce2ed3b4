"""Print text to standard output as it is generated."""

from __future__ import annotations

import sys
from typing import Any

from streamers.base_streamer import RowStreamer, RowText


class TextStreamer(RowStreamer):
    """Simple text streamer that prints the tokens to stdout as soon as entire words are formed.

    For a batch of several rows, a line begins with `[row] ` where the row changes.

    Examples:
        >>> streamer = TextStreamer(tokenizer)
        >>> model.generate(**inputs, streamer=streamer, max_new_tokens=20)
        An increasing sequence: one, two, three, four, five, six, seven, eight, nine, ten, eleven,
    """

    def __init__(self, tokenizer: Any, skip_prompt: bool = False, **decode_kwargs: Any) -> None:
        """Args:
        tokenizer: Tokenizer that decodes the ids; see `Detokenizer`.
        skip_prompt: Leave the prompt out of the text. Useful e.g. for chatbots.
        decode_kwargs: Further arguments of the tokenizer's `decode`.

        Raises:
            TypeError: `tokenizer` cannot decode.
        """
        super().__init__(tokenizer, skip_prompt, **decode_kwargs)
        self._row: int | None = None  # whose line is open
        self._at_line_start = True

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Print the text, and a newline if the stream is ending.

        Args:
            text: Text of whole words; a `RowText` has its row.
            stream_end: True if nothing follows.
        """
        out: str = self._with_row_label(text) if self._batch > 1 else text
        if stream_end:
            out += "\n"
            self._row, self._at_line_start = None, True
        sys.stdout.write(out)
        sys.stdout.flush()

    def _with_row_label(self, text: str) -> str:
        row = text.row if isinstance(text, RowText) else 0
        if not text:
            return ""
        label = ""
        if row != self._row:
            label = f"[{row}] " if self._at_line_start else f"\n[{row}] "
            self._row = row
        self._at_line_start = text.endswith("\n")
        return label + text
