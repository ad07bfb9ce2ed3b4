"""A model that says what it is told to, by what the conversation holds: one request at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen import AsyncLLM
from tests.doubles.models import EOS, ScriptedCore, TableModel, byte_tokenizer
from tests.text.tool_calls.templates import QWEN

if TYPE_CHECKING:
    from collections.abc import Callable

ASSISTANT = b"<start>assistant:"
CALLED = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'


def call(name: str, arguments: str) -> str:
    """A call as Qwen writes it."""
    return CALLED.format(name, arguments)


class TalkingCore(ScriptedCore):
    """Says what a function of the conversation returns; knows one row, without shared prefixes."""

    def __init__(self, like: TableModel, answer: Callable[[str], str]) -> None:
        super().__init__(like.config, [], 0, None)
        self._answer = answer
        self._seen: list[int] = []
        self._script: list[int] | None = None
        self._begin = 0

    def hidden_packed(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        wanted: torch.Tensor,
        attention: object,
    ) -> torch.Tensor:
        """Take note of the tokens."""
        start = int(positions[0])
        if start == 0:
            self._script = None
        self._seen[start:] = input_ids.tolist()
        return super().hidden_packed(input_ids, positions, wanted, attention)

    def logits(self, last_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits that all but name the next id of the script."""
        scores = torch.zeros(len(positions), self.config.vocab_size)
        if self._script is None and len(positions):
            self._begin = len(self._seen)
            text = bytes(each if each < EOS else 10 for each in self._seen).decode()
            self._script = [*self._answer(text).encode(), EOS]
        for row, position in enumerate(positions.tolist()):
            assert self._script is not None
            place = min(max(position + 1 - self._begin, 0), len(self._script) - 1)
            scores[row, self._script[place]] = 20.0
        return scores


def talking(answer: Callable[[str], str], template: str = QWEN) -> AsyncLLM:
    """An engine that answers by a function of the conversation, as the template lays it out."""
    model = TableModel(script="", context_length=16384)
    model.core = TalkingCore(model, answer)
    tokenizer = byte_tokenizer(chat_template=template)
    return AsyncLLM(model, tokenizer=tokenizer, prefix_caching=False)
