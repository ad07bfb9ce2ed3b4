"""Track the tokens of an answer, and build the request that another engine resumes from.

Strategies that cannot resume behind tokens (beams, drafts of their own) run again from the
beginning with the same seed. Output that was read already must come again, and is dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen import EngineDiedError, InvalidRequestError, TokenEvent
from asyncgen_apps.serving.resumption import RepeatedOutput, resumed_params

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncgen_apps.remote.messages import StreamRequest, StreamStarted


class LostStreamError(EngineDiedError):
    """Raised for a stream that no engine could resume.

    Attributes:
        generated_ids: Tokens of each sample, without the ``generated_ids`` of the request.
        texts: Text of each sample so far.
    """

    def __init__(
        self, message: str, generated_ids: tuple[tuple[int, ...], ...], texts: tuple[str, ...]
    ) -> None:
        """Keep the output so far."""
        super().__init__(message)
        self.generated_ids = generated_ids
        self.texts = texts

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the arguments for pickling."""
        return type(self), (str(self), self.generated_ids, self.texts)


class _Sample:
    """Delivered output of one sample.

    Attributes:
        ids: Token ids.
        text: Pieces of text.
        is_over: True if its last event was delivered.
        repeated: Delivered output that a restarted request generates again.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.text: list[str] = []
        self.is_over = False
        self.repeated = RepeatedOutput((), 0)


class Progress:
    """Output of one answer that was delivered.

    Attributes:
        first: First message of its first engine; ``None`` before that.
        num_lost: Number of engines lost since the last token.
        offset: Seconds from the start of the answer to the start of the newest engine's part.
    """

    def __init__(self, request: StreamRequest) -> None:
        """Begin without output.

        Args:
            request: Request of the caller.
        """
        self._request = request
        self._rows: dict[int, _Sample] = {}
        self._is_repeated = self._has_prompt_logprobs = False
        self.offset = 0.0
        self.first: StreamStarted | None = None
        self.num_lost = 0

    @property
    def delivered(self) -> dict[int, list[int]]:
        """Delivered token ids by sample."""
        return {index: row.ids for index, row in self._rows.items()}

    def is_over(self, index: int) -> bool:
        """Tell whether the last event of a sample was delivered."""
        return index in self._rows and self._rows[index].is_over

    def begin(self, begun: StreamStarted) -> None:
        """Note that an engine has started the answer.

        Raises:
            LostStreamError: Its prompt has other ids: another model, or another chat template.
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
            LostStreamError: An answer that runs again differs from the first one.
        """
        fresh = []
        for event in events:
            row = self._rows.get(event.index)
            if row is None:
                row = self._rows[event.index] = _Sample()
            if row.is_over:
                continue  # it had ended before, and ends again with the same tokens
            kept = self._without_repeated(row, event)
            row.ids += kept.token_ids
            row.text.append(kept.text)
            row.is_over = kept.finish_reason is not None
            if kept.token_ids:
                self.num_lost = 0
            is_new = bool(kept.token_ids or kept.text or kept.reasoning or kept.tool_calls)
            if kept.prompt_logprobs is not None:
                if self._has_prompt_logprobs:
                    kept = replace(kept, prompt_logprobs=None)
                self._has_prompt_logprobs = is_new = True
            if is_new or row.is_over:
                fresh.append(kept)
        return fresh

    def _without_repeated(self, row: _Sample, event: TokenEvent) -> TokenEvent:
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
        """Note the loss of an engine, so many seconds after the start of the answer."""
        self.num_lost += 1
        self.offset = elapsed

    def next_request(self) -> StreamRequest:
        """Return the request for the next engine: all of it, or the missing part."""
        first, given = self.first, self._request.params
        if first is None:
            return self._request
        rows = range(len(first.position))
        ids = [] if self._is_repeated else [self.delivered.get(row, []) for row in rows]
        params = resumed_params(given, ids, seed=first.seed, elapsed=self.offset)
        if any(ids) and "fingerprint" not in given and first.fingerprint is not None:
            params["fingerprint"] = first.fingerprint
        return replace(self._request, params=params)

    def repeats_after(self, error: Exception) -> bool:
        """Tell whether to run it from the beginning, because it cannot resume behind tokens."""
        if self._is_repeated or self._request.params.get("generated_ids"):
            return False
        if not isinstance(error, InvalidRequestError) or error.parameter != "generated_ids":
            return False
        self._is_repeated = True
        return True

    def lost(self, reason: str) -> LostStreamError:
        """Return the error of a stream that no engine resumes."""
        rows = [self._rows[index] for index in sorted(self._rows)]
        ids = tuple(tuple(row.ids) for row in rows)
        return LostStreamError(reason, ids, tuple("".join(row.text) for row in rows))
