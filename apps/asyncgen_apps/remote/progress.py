"""Track the tokens of an answer, and build the request that another engine resumes from.

Draws are a function of seed, position and token, so an engine that is told the tokens goes on as
the first one would have. Strategies that cannot (beams, drafts of their own) are run again from
the beginning with the same seed, and what was read already is dropped; it must be the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen import EngineDiedError, InvalidRequestError, TokenEvent
from asyncgen_apps.serving.resumption import RepeatedOutput, resumed_params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncgen_apps.remote.messages import Begun, Order


class LostStreamError(EngineDiedError):
    """A stream that no engine could go on with.

    Attributes:
        generated_ids: What each sample had generated, without what the request came with.
        texts: The text of each sample, as far as it was settled.
    """

    def __init__(
        self, message: str, generated_ids: tuple[tuple[int, ...], ...], texts: tuple[str, ...]
    ) -> None:
        """Keep what was generated."""
        super().__init__(message)
        self.generated_ids = generated_ids
        self.texts = texts

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it cross to another process."""
        return type(self), (str(self), self.generated_ids, self.texts)


class _Row:
    """One sample.

    Attributes:
        ids: Delivered.
        text: Delivered.
        is_over: Whether its last event was delivered.
        repeated: Delivered output that a restarted request generates again.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text: list[str] = []
        self.is_over = False
        self.repeated = RepeatedOutput((), 0)


class Progress:
    """Tokens and text of one answer that were read.

    Attributes:
        first: How it began; ``None`` before that.
        num_lost: Engines that were lost since the last token.
        offset: Seconds that the times of the newest engine are behind those of the answer.
    """

    def __init__(self, order: Order) -> None:
        """Nothing was read.

        Args:
            order: What was wanted at first.
        """
        self._order = order
        self._rows: dict[int, _Row] = {}
        self._is_repeated = self._has_told_prompt = False
        self.offset = 0.0
        self.first: Begun | None = None
        self.num_lost = 0

    @property
    def delivered(self) -> dict[int, list[int]]:
        """Ids by sample."""
        return {index: row.ids for index, row in self._rows.items()}

    def is_over(self, index: int) -> bool:
        """Tell whether the last event of a sample was delivered."""
        return index in self._rows and self._rows[index].is_over

    def begin(self, begun: Begun) -> None:
        """An engine has taken the answer up.

        Raises:
            LostStreamError: It reads the prompt otherwise: another model, or another template.
        """
        if self.first is None:
            self.first = begun
        elif begun.prompt_ids != self.first.prompt_ids:
            raise self.lost("the engine that was to go on reads the prompt otherwise")
        if self._is_repeated:
            for row in self._rows.values():
                row.repeated = RepeatedOutput(row.ids, len("".join(row.text)))

    def take(self, events: Iterable[TokenEvent]) -> list[TokenEvent]:
        """Return the new part of some events.

        Raises:
            LostStreamError: An answer that is run again is another one.
        """
        fresh = []
        for event in events:
            row = self._rows.get(event.index)
            if row is None:
                row = self._rows[event.index] = _Row()
            if row.is_over:
                continue  # it had ended before, and ends again with the same tokens
            kept = self._without_read(row, event)
            row.ids += kept.token_ids
            row.text.append(kept.text)
            row.is_over = kept.finish_reason is not None
            if kept.token_ids:
                self.num_lost = 0
            said = bool(kept.token_ids or kept.text or kept.reasoning or kept.tool_calls)
            if kept.prompt_logprobs is not None:
                if self._has_told_prompt:
                    kept = replace(kept, prompt_logprobs=None)
                self._has_told_prompt = said = True
            if said or row.is_over:
                fresh.append(kept)
        return fresh

    def _without_read(self, row: _Row, event: TokenEvent) -> TokenEvent:
        if not row.repeated:
            return event
        dropped = row.repeated.drop(event.token_ids, event.text)
        if dropped is None:
            raise self.lost("the answer was run again, and is another one")
        num_ids, num_characters = dropped
        # Restarted strategies send reasoning and tool calls together with their token ids.
        is_new = len(event.token_ids) > num_ids
        return replace(
            event,
            token_ids=event.token_ids[num_ids:],
            text=event.text[num_characters:],
            logprobs=None if event.logprobs is None else event.logprobs[num_ids:],
            reasoning=event.reasoning if is_new else "",
            tool_calls=event.tool_calls if is_new else (),
        )

    def lose(self, elapsed: float) -> None:
        """The engine is lost, so many seconds after the first one accepted the request."""
        self.num_lost += 1
        self.offset = elapsed

    def order(self) -> Order:
        """Build the request for the next engine: all of it, or the part that is missing."""
        first, given = self.first, self._order.params
        if first is None:
            return self._order
        rows = range(len(first.position))
        ids = [] if self._is_repeated else [self.delivered.get(row, []) for row in rows]
        params = resumed_params(given, ids, seed=first.seed, elapsed=self.offset)
        if any(ids) and "fingerprint" not in given and first.fingerprint is not None:
            params["fingerprint"] = first.fingerprint
        return replace(self._order, params=params)

    def repeats_after(self, error: Exception) -> bool:
        """Tell whether to run it from the beginning; some strategies cannot resume after ids."""
        if self._is_repeated or self._order.params.get("generated_ids"):
            return False
        if not isinstance(error, InvalidRequestError) or error.parameter != "generated_ids":
            return False
        self._is_repeated = True
        return True

    def lost(self, why: str) -> LostStreamError:
        """The error of a stream that ends here."""
        rows = [self._rows[index] for index in sorted(self._rows)]
        ids = tuple(tuple(row.ids) for row in rows)
        return LostStreamError(why, ids, tuple("".join(row.text) for row in rows))
