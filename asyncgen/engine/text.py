"""The text of one sample: ids in, exact text out, cut at the stop strings; or none at all."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from streamers import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.engine.requests.request import Request
    from asyncgen.tokenizer import Tokenizer

__all__ = ["NoText", "SampleText"]


class SampleText:
    """Detokenizer and stop strings of one sample."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        """Begin after the prompt.

        Args:
            tokenizer: Turns ids to text.
            request: Gives the prompt, the stop strings, and whether special tokens show.
        """
        self._tokenizer = tokenizer
        self._skip_special_tokens = request.params.skip_special_tokens
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_ids=request.prompt_ids if request.continues_text else None,
            skip_special_tokens=request.params.skip_special_tokens,
        )
        self._shown = self._pending = ""
        # Copies search in what was laid out once, before the request reached the decode thread.
        self._stops = copy.copy(request.stops)

    def heal(self, token_id: int, prompt_ids: Sequence[int], shown: str) -> None:
        """Begin anew: the prompt ends with another token than it did.

        Args:
            token_id: The token.
            prompt_ids: What comes before it.
            shown: Text that the reader of the prompt has seen in its place, and will not again.
        """
        self._detokenizer = Detokenizer(
            self._tokenizer, prompt_ids=prompt_ids, skip_special_tokens=self._skip_special_tokens
        )
        self._shown = shown
        self._pending = self._unshown(self._detokenizer.put([token_id]))

    def _unshown(self, text: str) -> str:
        """A text without the beginning that the prompt has shown already."""
        shown, count = self._shown, 0
        if not shown:
            return text
        while count < min(len(text), len(shown)) and text[count] == shown[count]:
            count += 1
        self._shown = shown[count:] if count == len(text) else ""
        return text[count:]

    def add(self, token_ids: Sequence[int]) -> tuple[str, str | None]:
        """Take in ids; return text that may be shown, and the stop string that was met."""
        text = self._detokenizer.put(token_ids)
        if self._shown or self._pending:
            text, self._pending = self._pending + self._unshown(text), ""
        return (text, None) if self._stops is None else self._stops.put(text)

    def finish(self) -> tuple[str, str | None]:
        """The rest of the text: an incomplete character, and what a stop string held back."""
        text = self._pending + self._unshown(self._detokenizer.flush())
        self._pending = ""
        if self._stops is None:
            return text, None
        text, stop = self._stops.put(text)
        return (text, stop) if stop else (text + self._stops.flush(), None)


class NoText:
    """The text of a sample of whom only the ids are wanted: none."""

    def add(self, token_ids: Sequence[int]) -> tuple[str, str | None]:
        """Take in ids."""
        return "", None

    def finish(self) -> tuple[str, str | None]:
        """Nothing is held back."""
        return "", None

    def heal(self, token_id: int, prompt_ids: Sequence[int], shown: str) -> None:
        """The prompt has no text either."""
