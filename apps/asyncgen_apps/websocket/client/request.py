"""Keep the state of one request of a client: parameters, received output, result.

Knows no socket and no message format; callers pass a clock. Everything runs in the event loop of
the client; only :attr:`Request.cancel_wanted` may be set from any thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen import Completion, Timing, TokenEvent, Usage
from asyncgen_apps.serving.resumption import (
    RepeatedOutput,
    count_samples,
    given_ids,
    resumed_params,
)
from asyncgen_apps.serving.samples import sample_of
from asyncgen_apps.websocket.client.errors import ConnectionLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen import FinishReason, TokenLogprob, ToolCallDelta


class GapError(Exception):
    """Raised for a delta whose number does not follow the last one."""


class Phase(Enum):
    """State of a request."""

    NEW = auto()
    """Nothing was sent."""
    SENT = auto()
    """The server may have it: after a lost connection it is sent again."""
    ACCEPTED = auto()
    """The server has it: it is resumed on the next connection."""
    ENDED = auto()
    """It has ended; no output follows."""


class Request:
    """State of one request, from the call to the last event.

    Attributes:
        prompt: Field of ``generate`` with the prompt.
        params: Parameters, as JSON.
        phase: State of the request.
        id: Name on the wire; a new one each time it is sent.
        resume_token: Token from its ``accepted``.
        seq: Number of the last received delta.
        cancel_wanted: True if it is to end with ``"cancelled"``.
        cancel_sent: True if ``cancel`` was sent on this connection.
        left: True if nobody reads it any more.
        events: Received events that were not read.
        failure: Exception for the reader, after the events.
        server: Index of the address that accepted it last.
        fingerprint: Fingerprint of the engine of all received tokens; ``None`` promises nothing.
        exact: True if the received tokens are those that one engine alone generates.
        is_repeated: True if it was sent whole to a server that did not begin it, and that has not
            accepted it yet.
        is_held: True if its server refused it for now, and has nothing of it.
    """

    def __init__(
        self, prompt: dict[str, Any], params: dict[str, Any], clock: Callable[[], float]
    ) -> None:
        """Keep what will be sent.

        Args:
            prompt: Field of ``generate`` with the prompt.
            params: Parameters, as JSON.
            clock: Returns monotonic seconds.
        """
        self.prompt = prompt
        self.params = params
        self.phase = Phase.NEW
        self.id = ""
        self.resume_token = ""
        self.seq = 0
        self.cancel_wanted = False
        self.cancel_sent = False
        self.left = False
        self.events: deque[TokenEvent] = deque()
        self.failure: Exception | None = None
        self.server = 0
        self.fingerprint: str | None = None
        self.exact = True
        self.is_repeated = self.is_held = False
        self._seed: int | None = None
        self._clock = clock
        self._accepted_at: float | None = None
        self._has_moved = self._starts_over = False
        self._repeated: dict[int, RepeatedOutput] = {}
        # Text that was held back to the end of a sample; after a move the next server sends it.
        self._last_texts: dict[int, str] = {}
        self._times: list[float] = []
        self._samples: dict[int, list[TokenEvent]] = {}
        self._prompt: list[TokenLogprob | None] = []
        self._is_prompt_read = False  # its log-probabilities go out with the first event
        self._usage: Usage | None = None
        self._timing: Timing | None = None
        self._unfinished: FinishReason = "cancelled"
        self._changed: anyio.Event | None = None

    @property
    def asked(self) -> int:
        """Number of samples asked for; the server may refuse it."""
        return count_samples(self.params)

    @property
    def num_samples(self) -> int:
        """Number of samples that the server has accepted; 1 before that."""
        accepted = 1 if self._accepted_at is None else self.asked
        return max(accepted, *(index + 1 for index in self._samples), 1)

    @property
    def given_up(self) -> bool:
        """True if the server need not continue it."""
        return self.left or self.cancel_wanted

    def accept(self, resume_token: str, seed: int | None = None) -> None:
        """Note that a server accepted or resumed it."""
        self.phase = Phase.ACCEPTED
        self.resume_token = resume_token
        self.is_repeated = self.is_held = False
        self._seed = seed if self._seed is None else self._seed
        if self._accepted_at is None:
            self._accepted_at = self._clock()
        self.wake()

    def move(self) -> None:
        """Prepare it for another server, which resumes behind the received tokens."""
        self.phase, self._has_moved = Phase.NEW, True
        self.resume_token, self.seq, self.cancel_sent = "", 0, False
        self._forget_parts()

    def repeat(self) -> None:
        """Prepare it for a ``resume`` with the whole request, to a server that did not begin it."""
        self.is_repeated = self._has_moved = True
        self.is_held = False
        self._forget_parts()

    def _forget_parts(self) -> None:
        """Forget the parts that the next server sends again."""
        self._last_texts.clear()
        if not self._is_prompt_read:
            self._prompt.clear()

    @property
    def arrived(self) -> tuple[list[list[int]], list[int]]:
        """Received token ids of each sample, and its number of tokens with the given ones."""
        ids = [self._ids(index) for index in range(self.asked)]
        given = given_ids(self.params, len(ids))
        return ids, [len(first) + len(row) for first, row in zip(given, ids, strict=True)]

    @property
    def starts_over(self) -> bool:
        """True if it was started again, because it cannot resume behind tokens."""
        return self._starts_over

    def start_over(self, fingerprint: str | None) -> bool:
        """Prepare a request that cannot resume behind tokens to be generated again.

        Args:
            fingerprint: Fingerprint of the next engine.

        Returns:
            False if the output could differ, because the fingerprint does.
        """
        if self._starts_over or not self.exact or fingerprint != self.fingerprint:
            return False
        self._starts_over = True
        self.move()
        return True

    @property
    def has_tokens(self) -> bool:
        """True if any token was received."""
        return any(map(self._ids, self._samples))

    def _ids(self, index: int) -> list[int]:
        """Return the received token ids of a sample."""
        return [each for event in self._samples.get(index, ()) for each in event.token_ids]

    @property
    def sent_params(self) -> dict[str, Any]:
        """Parameters for the next server, with the received tokens if there are any."""
        self._repeated = {}
        if not self.has_tokens:
            return self.params
        if self._starts_over:
            for index, events in self._samples.items():
                num_characters = sum(len(event.text) for event in events)
                self._repeated[index] = RepeatedOutput(self._ids(index), num_characters)
            seed = {} if self._seed is None else {"seed": self._seed}
            return {**seed, **self.params}
        resumed = resumed_params(self.params, self.arrived[0])
        if self.fingerprint is not None:
            resumed["fingerprint"] = self.fingerprint
        return resumed

    def add(
        self,
        first_seq: int,
        seq: int,
        *,
        index: int,
        text: str,
        token_ids: Sequence[int] | None,
        logprobs: Sequence[TokenLogprob] | None,
        time: float | None = None,
        reasoning: str = "",
        tool_calls: Sequence[ToolCallDelta] = (),
        prompt: Sequence[TokenLogprob | None] = (),
    ) -> None:
        """Add a delta; one that was received before changes nothing.

        Args:
            first_seq: Number of the first piece that it holds.
            seq: Number of the last one.
            index: Number of the sample.
            text: New text.
            token_ids: New token ids; empty if the text was held back to the end of the sample;
                ``None`` if the server sends no ids.
            logprobs: One entry a token id, if asked for.
            time: Seconds since the engine accepted the request; ``None`` takes the client's clock.
            reasoning: New reasoning.
            tool_calls: Pieces of tool calls.
            prompt: Next entries of the prompt.

        Raises:
            GapError: A delta before it is missing, or it overlaps with those received.
        """
        if not self._follows(first_seq, seq):
            return
        if prompt and not self._is_prompt_read:
            self._prompt += prompt
        is_last = token_ids is not None and not token_ids
        ids = token_ids or ()
        if repeated := self._repeated.get(index):
            dropped = repeated.drop(ids, text)
            if dropped is None:
                message = "its server was lost, and another says something else"
                self.fail(ConnectionLostError(message))
                return
            num_ids, num_characters = dropped
            if ids and num_ids == len(ids):
                reasoning, tool_calls = "", ()  # received before
            text, ids = text[num_characters:], ids[num_ids:]
            logprobs = None if logprobs is None else logprobs[num_ids:]
        if is_last:
            self._last_texts[index] = text
        if is_last or not (text or ids or reasoning or tool_calls):
            return
        since = self._since_accepted() if time is None else time
        if ids:
            self._times.append(since)
        shown = None if logprobs is None else tuple(logprobs)
        event = TokenEvent(index, tuple(ids), text, shown, since)
        if reasoning or tool_calls:
            event = replace(event, reasoning=reasoning, tool_calls=tuple(tool_calls))
        self._put(event)
        self.wake()

    def _put(self, event: TokenEvent) -> None:
        """Add an event for the reader; the first one has the log-probabilities of the prompt."""
        if not self._is_prompt_read and self._prompt:
            event = replace(event, prompt_logprobs=tuple(self._prompt))
        self._is_prompt_read = True
        self.events.append(event)
        self._samples.setdefault(event.index, []).append(event)

    def finish(
        self,
        seq: int,
        ends: Sequence[tuple[int, FinishReason, int | str | None]],
        usage: Usage,
        timing: Timing,
    ) -> None:
        """End with the result of the server.

        Args:
            seq: Number of the message.
            ends: Index, finish reason and stop reason of each sample.
            usage: Token counts.
            timing: Times.

        Raises:
            GapError: A delta before it is missing.
        """
        if not self._follows(seq, seq):
            return
        since = timing.total
        if len(self._prompt) < usage.prompt_tokens:
            self._prompt.clear()  # the request was cancelled before all had come
        for number, (index, finish, stop) in enumerate(ends, start=1):
            event = TokenEvent(index, (), self._last_text(index), None, since, finish, stop)
            if number == len(ends):
                event = replace(event, usage=usage, timing=timing)
            self._put(event)
        self._usage, self._timing = usage, timing
        self.exact = self.exact and (usage.exact or not self._has_moved)
        self._end()

    def fail(self, error: Exception) -> None:
        """End with an error, which the reader gets after all events."""
        if self.phase is not Phase.ENDED:
            self.failure = error
            self._unfinished = "error"
            self._end()

    def stop(self, reason: FinishReason) -> None:
        """End at once, with what was received."""
        if self.phase is not Phase.ENDED:
            self._unfinished = reason
            since = self._since_accepted()
            for index in range(self.num_samples):
                event = TokenEvent(index, (), self._last_text(index), None, since, reason)
                self.events.append(event)
                self._samples.setdefault(index, []).append(event)
            result = self.build_result()
            self.events[-1] = replace(self.events[-1], usage=result.usage, timing=result.timing)
            self._end()

    async def wait(self) -> None:
        """Return at the next change. One task at a time; a cancelled wait loses nothing."""
        self._changed = anyio.Event()
        try:
            await self._changed.wait()
        finally:
            self._changed = None

    def build_result(self) -> Completion:
        """Return the result so far, with counts and times of the server if it has ended."""
        samples = tuple(
            sample_of(index, self._samples.get(index, ()), self._unfinished)
            for index in range(self.num_samples)
        )
        generated = sum(len(sample.token_ids) for sample in samples)
        usage = self._usage or Usage(len(self.prompt.get("token_ids", ())), generated)
        prompt = tuple(self._prompt) if self._prompt and self._is_prompt_read else None
        return Completion(samples, usage, self._timing or self._own_timing(), prompt)

    def _follows(self, first_seq: int, seq: int) -> bool:
        """Tell whether a message is new; if so, count it as received."""
        if seq <= self.seq:
            return False
        if first_seq != self.seq + 1:
            raise GapError(f"{first_seq} to {seq} came after {self.seq}")
        self.seq = seq
        return True

    def _last_text(self, index: int) -> str:
        """Return the text of a sample that was held back to its end."""
        return self._last_texts.pop(index, "")

    def _since_accepted(self) -> float:
        return 0.0 if self._accepted_at is None else self._clock() - self._accepted_at

    def _own_timing(self) -> Timing:
        """Return the timings of a stream that did not reach its end."""
        times = self._times
        first, last = (times[0], times[-1]) if times else (None, None)
        rate = None
        if first is not None and last is not None and last > first:
            rate = (len(times) - 1) / (last - first)
        return Timing(None, first, max(self._since_accepted(), last or 0.0), rate)

    def _end(self) -> None:
        self.phase = Phase.ENDED
        self.wake()

    def wake(self) -> None:
        """Wake the task that waits for a change."""
        if self._changed is not None:
            self._changed.set()
