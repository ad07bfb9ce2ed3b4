"""From the ids of one sample to its text: exact, and cut at the stop strings.

Where reasoning or calls of tools are told apart, they are taken out of the exact text here, before
stop strings are looked for: those end the text for the user.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from streamers import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.engine.requests.conversation import AnswerReading
    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.generation.stopping.ends import Ends
    from asyncgen.structured.grammar import Grammar
    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.text.tool_calls.answer_parser import AnswerParser
    from asyncgen.types import FinishReason
    from streamers import StopStrings


class Asked(Protocol):
    """What a text must know of its request; `Request` explains the attributes."""

    prompt_ids: list[int]
    continues_text: bool
    params: RequestParams
    shown: str
    stops: StopStrings | None
    reading: AnswerReading | None
    grammar: Grammar | None
    ends: Ends


class SampleText:
    """The text of one sample: ids in, exact text out, cut at the stop strings.

    Attributes:
        live: Whether the sample goes on.
        reader: Takes reasoning and calls out of it; ``None`` where all of it is text.
        num_reasoning: Tokens of reasoning so far.
    """

    __slots__ = (
        "_detokenizer",
        "_pending",
        "_request",
        "_shown",
        "_stops",
        "_tokenizer",
        "_untold",
        "live",
        "num_reasoning",
        "reader",
    )

    def __init__(self, tokenizer: Tokenizer | None, request: Asked, index: int = 0) -> None:
        """Begin after the prompt.

        Args:
            tokenizer: Turns ids to text; without one the text is empty.
            request: Gives the prompt, the stop strings, and whether special tokens show.
            index: Which sample of the request.
        """
        self.live = True
        self.num_reasoning = 0
        self.reader: AnswerParser | None = None
        if request.reading is not None and tokenizer is not None:
            seed = request.params.seed
            self.reader = request.reading.reader(request.prompt_ids, seed, index)
        self._tokenizer = tokenizer
        self._request = request
        # What ends an answer in a shape is no part of it, whatever text it stands for.
        has_shape = request.grammar is not None
        self._untold = frozenset(request.ends.eos_token_ids if has_shape else ())
        self._detokenizer = self._after(request.prompt_ids if request.continues_text else None)
        self._shown = self._pending = ""
        # Copies search in what was laid out once, before the request reached the decode thread.
        self._stops = copy.copy(request.stops)

    def _after(self, prompt_ids: Sequence[int] | None) -> Detokenizer | None:
        """What turns the ids behind a prompt to text."""
        # A reader leaves out by itself what is hidden, and wants to see the markers.
        skip = self._request.params.skip_special_tokens and self.reader is None
        if self._tokenizer is None:
            return None
        return Detokenizer(self._tokenizer, prompt_ids=prompt_ids, skip_special_tokens=skip)

    def heal(self, prompt_ids: Sequence[int]) -> None:
        """Begin anew: the prompt's last token was chosen again.

        What the reader of the prompt has seen in the place of that token is not shown twice.

        Args:
            prompt_ids: The prompt as it is now.
        """
        self._detokenizer = self._after(prompt_ids[:-1])
        if self._detokenizer is not None:
            self._shown = self._request.shown
            self._pending = self._unshown(self._detokenizer.put(prompt_ids[-1:]))

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
        """Take in ids; return text that may be shown, and the stop string that was met.

        The stop string is empty where there is as much of the answer as is wanted.
        """
        if self._detokenizer is None:
            return "", None
        if self.reader is not None:
            return self._read(token_ids, self.reader)
        if self._untold:
            token_ids = [token_id for token_id in token_ids if token_id not in self._untold]
        text = self._detokenizer.put(token_ids)
        if self._shown or self._pending:
            text, self._pending = self._pending + self._unshown(text), ""
        return (text, None) if self._stops is None else self._stops.put(text)

    def _read(self, token_ids: Sequence[int], reader: AnswerParser) -> tuple[str, str | None]:
        """Take in ids of an answer that is taken apart."""
        assert self._detokenizer is not None and self._request.reading is not None
        hidden, pieces = self._request.reading.hidden, []
        for token_id in token_ids:
            was_reasoning = reader.in_reasoning
            if token_id not in hidden and token_id not in self._untold:
                pieces.append(reader.put(self._detokenizer.put(token_id)))
            self.num_reasoning += was_reasoning or reader.in_reasoning
        text = "".join(pieces)
        text, stop = (text, None) if self._stops is None else self._stops.put(text)
        return text, "" if stop is None and reader.is_over else stop

    def finish(self) -> tuple[str, str | None]:
        """The rest of the text: an incomplete character, and what a stop string held back."""
        if self._detokenizer is None:
            return "", None
        text = self._pending + self._unshown(self._detokenizer.flush())
        self._pending = ""
        if self.reader is not None:
            text = self.reader.put(text) + self.reader.flush()
        if self._stops is None:
            return text, None
        text, stop = self._stops.put(text)
        return (text, stop) if stop else (text + self._stops.flush(), None)


@dataclass(frozen=True, slots=True)
class GivenTokens:
    """What a sample had generated before its request came here.

    Attributes:
        token_ids: Its generated tokens, in order; may be none.
        text: The text so far, which the reader has, and what is held back of it.
        shown: That text, as far as nothing is held back of it.
        reason: Why the sample has ended with them, ``None`` where it goes on.
        stop: The end-of-sequence id or the stop string that ended it.
    """

    token_ids: tuple[int, ...]
    text: SampleText
    shown: str = ""
    reason: FinishReason | None = None
    stop: int | str | None = None
