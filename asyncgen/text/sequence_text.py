"""Turn the token ids of one sequence into text: exact, and cut at the stop strings.

Reasoning and tool calls, where they are told apart, are taken out of the exact text before stop
strings are searched: stop strings end the text for the user.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from asyncgen.text.hidden_stops import HiddenStops
from streamers import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.text.tool_calls.answer_parser import AnswerParser
    from streamers import StopStrings


class SequenceText:
    """Text of one sequence as it grows.

    Attributes:
        parser: Takes reasoning and tool calls out of the text; ``None`` where all of it is text.
        num_reasoning: Tokens of reasoning so far.
    """

    __slots__ = (
        "_detokenizer",
        "_hidden",
        "_marks",
        "_omitted",
        "_pending",
        "_shown",
        "_skip_special_tokens",
        "_stops",
        "_tokenizer",
        "num_reasoning",
        "parser",
    )

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt_ids: Sequence[int] | None = None,
        *,
        skip_special_tokens: bool = True,
        stops: StopStrings | None = None,
        omitted: frozenset[int] = frozenset(),
        parser: AnswerParser | None = None,
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        """Begin behind the prompt.

        Args:
            tokenizer: Decodes ids; without one the text is empty.
            prompt_ids: Prompt that the text goes on from; ``None`` if the text stands alone.
            skip_special_tokens: Whether special tokens are left out.
            stops: Search for stop strings; copied.
            omitted: Ids without text, as they end an answer of a required structure.
            parser: Takes reasoning and tool calls out of the text.
            hidden: Special tokens that the parser does not see.
        """
        self.num_reasoning = 0
        self.parser = parser
        self._tokenizer = tokenizer
        # A parser must see the special tokens that mark reasoning and calls.
        self._skip_special_tokens = skip_special_tokens and parser is None
        self._hidden, self._omitted = hidden | omitted, omitted
        self._shown = self._pending = ""
        # A copy reuses the search tables, which were built before the request was posted.
        self._stops = copy.copy(stops)
        self._marks = stops.marks if isinstance(stops, HiddenStops) else None
        self._detokenizer: Detokenizer | None = None
        if tokenizer is not None:
            skip = self._skip_special_tokens
            self._detokenizer = Detokenizer(
                tokenizer, prompt_ids=prompt_ids, skip_special_tokens=skip
            )

    def heal(self, prompt_ids: Sequence[int], shown: str) -> None:
        """Begin anew, because the last token of the prompt was chosen again.

        Args:
            prompt_ids: The new prompt.
            shown: Text of the old last token; the user has it and does not get it again.
        """
        if self._tokenizer is not None:
            skip = self._skip_special_tokens
            self._detokenizer = Detokenizer(
                self._tokenizer, prompt_ids=prompt_ids[:-1], skip_special_tokens=skip
            )
            self._shown = shown
            self._pending = self._without_shown(self._detokenizer.put(prompt_ids[-1:]))

    def _without_shown(self, text: str) -> str:
        """Cut off the beginning that the user has."""
        shown, count = self._shown, 0
        if not shown:
            return text
        while count < min(len(text), len(shown)) and text[count] == shown[count]:
            count += 1
        self._shown = shown[count:] if count == len(text) else ""
        return text[count:]

    def add(self, token_ids: Sequence[int]) -> tuple[str, str | None]:
        """Add ids.

        Returns:
            New text for the user, and the stop string that was met; ``None`` for none. The stop
            string is empty if the parser has all of the answer that was asked for.
        """
        if self._detokenizer is None:
            return "", None
        if self.parser is not None:
            return self._read(token_ids, self.parser)
        if self._omitted:
            token_ids = [token_id for token_id in token_ids if token_id not in self._omitted]
        if self._marks is None:
            text = self._detokenizer.put(token_ids)
        else:
            text = self._marked(token_ids, self._detokenizer, self._marks)
        if self._shown or self._pending:
            text, self._pending = self._pending + self._without_shown(text), ""
        return (text, None) if self._stops is None else self._stops.put(text)

    @staticmethod
    def _marked(
        token_ids: Sequence[int], detokenizer: Detokenizer, marks: Mapping[int, str]
    ) -> str:
        """Add ids; the text has a mark for each special token of a stop string."""
        return "".join(detokenizer.put(token) + marks.get(token, "") for token in token_ids)

    def _read(self, token_ids: Sequence[int], parser: AnswerParser) -> tuple[str, str | None]:
        """Add ids of an answer with reasoning or tool calls."""
        assert self._detokenizer is not None
        pieces = []
        for token_id in token_ids:
            was_reasoning = parser.in_reasoning
            if token_id not in self._hidden:
                pieces.append(parser.put(self._detokenizer.put(token_id)))
            elif self._marks is not None and not was_reasoning:
                pieces.append(self._marks.get(token_id, ""))
            self.num_reasoning += was_reasoning or parser.in_reasoning
        text = "".join(pieces)
        text, stop = (text, None) if self._stops is None else self._stops.put(text)
        return text, "" if stop is None and parser.is_over else stop

    def finish(self) -> tuple[str, str | None]:
        """End the text.

        Returns:
            As `add`: an incomplete character, and text that a possible stop string held back.
        """
        if self._detokenizer is None:
            return "", None
        text = self._detokenizer.flush()
        if self._shown or self._pending:
            text, self._pending = self._pending + self._without_shown(text), ""
        if self.parser is not None:
            text = self.parser.put(text) + self.parser.flush()
        if self._stops is None:
            return text, None
        text, stop = self._stops.put(text)
        return (text, stop) if stop else (text + self._stops.flush(), None)
