"""The text of one sample: ids in, exact text out, cut at the stop strings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamers import Detokenizer, StopStrings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.engine.request import Request
    from asyncgen.tokenizer import Tokenizer

__all__ = ["SampleText"]


class SampleText:
    """Detokenizer and stop strings of one sample."""

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        """Begin after the prompt.

        Args:
            tokenizer: Turns ids to text.
            request: Gives the prompt, the stop strings, and whether special tokens show.
        """
        self._detokenizer = Detokenizer(
            tokenizer,
            prompt_ids=request.prompt_ids if request.continues_text else None,
            skip_special_tokens=request.params.skip_special_tokens,
        )
        self._stops = StopStrings(request.params.stop) if request.params.stop else None

    def add(self, token_ids: Sequence[int]) -> tuple[str, str | None]:
        """Take in ids; return text that may be shown, and the stop string that was met."""
        text = self._detokenizer.put(token_ids)
        return (text, None) if self._stops is None else self._stops.put(text)

    def finish(self) -> tuple[str, str | None]:
        """The rest of the text: an incomplete character, and what a stop string held back."""
        text = self._detokenizer.flush()
        if self._stops is None:
            return text, None
        text, stop = self._stops.put(text)
        return (text, stop) if stop else (text + self._stops.flush(), None)
