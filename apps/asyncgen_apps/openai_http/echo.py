"""Prompts that are told before what continues them: ``echo`` of ``/v1/completions``.

Knows texts, tokens and the API's lists; not where a reply goes.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, TypeAlias

from streamers import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from asyncgen import Prompt, TokenEvent, Tokenizer, TokenLogprob


EchoedToken: TypeAlias = "tuple[str, TokenLogprob | None, int]"
"""Text of a token, its log-probability, and its offset in the text of its choice."""

PIECE = 256
"""Tokens of a prompt in one chunk of a stream: laying them out blocks the other replies."""


class Echo:
    """The prompts of one request.

    Attributes:
        texts: Text of each prompt, as given or decoded from its token ids.
    """

    def __init__(
        self, prompts: Sequence[Prompt], choices: int, *, skips_special: bool, goes_on: bool
    ) -> None:
        """Keep what was asked for.

        Args:
            prompts: Texts, or lists of token ids.
            choices: Number of choices of each prompt.
            skips_special: True leaves special tokens out of texts.
            goes_on: True if generated text follows the prompts.
        """
        self.texts: list[str] = []
        self._prompts = prompts
        self._choices = choices
        self._skips_special = skips_special
        self._goes_on = goes_on
        self._ids: list[list[int]] = []
        self._firsts: list[str] = []
        self._offsets: list[list[int]] = []
        self._ends: list[tuple[Detokenizer, int]] = []
        self._behind: dict[int, tuple[Detokenizer, int]] = {}
        self._entries: dict[int, Sequence[TokenLogprob | None]] = {}

    def begin(self, prompt_ids: Sequence[list[int]], tokenizer: Tokenizer) -> None:
        """Find out where each token of the prompts begins.

        Args:
            prompt_ids: Token ids of each prompt.
            tokenizer: Tokenizer of the model.
        """
        for prompt, ids in zip(self._prompts, prompt_ids, strict=True):
            detokenizer = Detokenizer(tokenizer, skip_special_tokens=self._skips_special)
            offsets, pieces, length = [], [], 0
            for token_id in ids:
                offsets.append(length)
                pieces.append(detokenizer.put(token_id))
                length += len(pieces[-1])
            if not self._goes_on:
                pieces.append(detokenizer.flush())
            text = prompt if isinstance(prompt, str) else "".join(pieces)
            self.texts.append(text)
            self._ids.append(ids)
            self._firsts.append(tokenizer.decode(ids[:1]))
            # A tokenizer that changes texts has other places than the text that was given.
            self._offsets.append([min(offset, len(text)) for offset in offsets])
            self._ends.append((detokenizer, len(text)))

    def number(self, index: int) -> int:
        """Return the number of the prompt that a choice continues."""
        return index // self._choices

    def note(self, index: int, event: TokenEvent) -> None:
        """Keep what an event of a choice tells of its prompt, if it does."""
        if event.prompt_logprobs is not None:
            self.learn(self.number(index), event.prompt_logprobs)

    def learn(self, number: int, entries: Sequence[TokenLogprob | None]) -> None:
        """Keep what the tokens of a prompt are worth."""
        self._entries[number] = entries

    def forget(self, number: int) -> None:
        """Drop what the tokens of a prompt are worth, once all of its choices have told it."""
        self._entries.pop(number, None)

    def pieces(self, index: int, size: int = PIECE) -> Iterator[tuple[str, list[EchoedToken]]]:
        """Yield the text of a choice's prompt with its tokens, ``size`` tokens at a time.

        Args:
            index: The choice.
            size: Tokens of a piece.

        Yields:
            A part of the text, and the tokens in it; without these where nothing is known of them.
        """
        number = self.number(index)
        text, offsets = self.texts[number], self._offsets[number]
        entries = self._entries.get(number)
        if entries is None:
            yield text, []
            return
        for start in range(0, len(entries), size):
            end = start + size
            stop = len(text) if end >= len(entries) else offsets[end]
            names = [
                self._firsts[number] if entry is None else entry.token
                for entry in entries[start:end]
            ]
            places = list(zip(names, entries[start:end], offsets[start:end], strict=True))
            yield text[offsets[start] : stop], places

    def place(self, index: int, entries: Sequence[TokenLogprob]) -> list[int]:
        """Return where the next tokens of a choice begin in its text; call it with each, in order.

        Args:
            index: The choice.
            entries: Log-probabilities of the tokens.
        """
        if index not in self._behind:
            detokenizer, length = self._ends[self.number(index)]
            self._behind[index] = copy.copy(detokenizer), length
        detokenizer, length = self._behind[index]
        offsets = []
        for entry in entries:
            offsets.append(length)
            length += len(detokenizer.put(entry.token_id))
        self._behind[index] = detokenizer, length
        return offsets
