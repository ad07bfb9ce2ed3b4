"""One request as the client sees it: what was asked, what has arrived, what it amounts to.

Knows no socket and no message format; the clock is handed in. Everything here runs in the loop of
the client, except that :attr:`Request.cancel_wanted` may be set from any thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen import (
    Completion,
    Sample,
    Timing,
    TokenEvent,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from asyncgen_apps.serving.resumption import count_samples, given_ids, resumed_params
from asyncgen_apps.websocket.client.errors import ConnectionLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncgen import FinishReason


class GapError(Exception):
    """A delta that does not follow on what has arrived."""


class Phase(Enum):
    """State of a request."""

    NEW = auto()
    """Nothing was sent."""
    SENT = auto()
    """The server may or may not have it: lost with the connection, and sent again."""
    ACCEPTED = auto()
    """The server has it: resumed on the next connection."""
    ENDED = auto()
    """Nothing more will come."""


@dataclass(slots=True)
class _Text:
    """Received part of one sample."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)


class Request:
    """The state of one request, from the call to the last event.

    Attributes:
        prompt: The field of ``generate`` that carries the prompt.
        params: The parameters, as JSON.
        phase: How far it has come.
        id: Its name on the wire; a new one each time it is sent.
        resume_token: What the server gave to resume it with.
        seq: Number of the last delta that arrived.
        cancel_wanted: Whether it is to end with ``"cancelled"``.
        cancel_sent: Whether the server was told so on this connection.
        left: Whether nobody reads it any more.
        events: What has arrived and was not read.
        failure: What the reader gets to see, once the events are read.
        server: Which of the client's addresses has accepted it last.
        fingerprint: Of the engine that has generated what has arrived; ``None`` promises nothing.
        exact: Whether what has arrived is what one engine alone would have said.
        is_repeated: Whether a server that has not begun it was told all of it, and has not
            accepted it yet.
        is_held: Whether its server has refused it for now, and has nothing of it.
    """

    def __init__(
        self, prompt: dict[str, Any], params: dict[str, Any], clock: Callable[[], float]
    ) -> None:
        """Keep what will be sent.

        Args:
            prompt: The field of ``generate`` that carries the prompt.
            params: The parameters, as JSON.
            clock: Seconds, from any origin.
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
        self._dropped: dict[int, tuple[int, int]] = {}
        self._rests: dict[int, str] = {}  # read with the end; the next server says them again
        self._times: list[float] = []
        self._samples: dict[int, _Text] = {}
        self._prompt: list[TokenLogprob | None] = []
        self._is_prompt_told = False  # it is whole with the first event
        self._usage: Usage | None = None
        self._timing: Timing | None = None
        self._unfinished: FinishReason = "cancelled"
        self._changed: anyio.Event | None = None

    @property
    def asked(self) -> int:
        """Number of samples asked for; the server decides if it allows them."""
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
        """The server has taken it up, or taken it up again."""
        self.phase = Phase.ACCEPTED
        self.resume_token = resume_token
        self.is_repeated = self.is_held = False
        self._seed = seed if self._seed is None else self._seed
        if self._accepted_at is None:
            self._accepted_at = self._clock()
        self.wake()

    def move(self) -> None:
        """Its server is lost: it shall be sent to another, which goes on behind its tokens."""
        self.phase, self._has_moved = Phase.NEW, True
        self.resume_token, self.seq, self.cancel_sent = "", 0, False
        self._forget_parts()

    def repeat(self) -> None:
        """A server that has not begun it is told all of it, and goes on behind its tokens."""
        self.is_repeated = self._has_moved = True
        self.is_held = False
        self._forget_parts()

    def _forget_parts(self) -> None:
        """Forget the parts that the next server sends again."""
        self._rests.clear()
        if not self._is_prompt_told:
            self._prompt.clear()

    @property
    def arrived(self) -> tuple[list[list[int]], list[int]]:
        """The ids of each sample that have arrived, and how many tokens each has with them."""
        ids = [list(self._samples.get(row, _Text()).token_ids) for row in range(self.asked)]
        given = given_ids(self.params, len(ids))
        return ids, [len(first) + len(row) for first, row in zip(given, ids, strict=True)]

    @property
    def starts_over(self) -> bool:
        """True if it was started again, because it cannot resume after tokens."""
        return self._starts_over

    def start_over(self, fingerprint: str | None) -> bool:
        """It cannot go on behind tokens: it shall be sent again, and what has arrived be dropped.

        Args:
            fingerprint: Of the engine that shall say it.

        Returns:
            Whether that can give the same: not with another fingerprint.
        """
        if self._starts_over or not self.exact or fingerprint != self.fingerprint:
            return False
        self._starts_over = True
        self.move()
        return True

    @property
    def has_tokens(self) -> bool:
        """True if tokens have arrived."""
        return any(sample.token_ids for sample in self._samples.values())

    @property
    def sent_params(self) -> dict[str, Any]:
        """The parameters as a server gets them now: behind the tokens that have arrived, if any."""
        self._dropped = {}
        if not self.has_tokens:
            return self.params
        if self._starts_over:
            for index, sample in self._samples.items():
                self._dropped[index] = sum(map(len, sample.texts)), len(sample.token_ids)
            drawn = {} if self._seed is None else {"seed": self._seed}
            return {**drawn, **self.params}
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
        """Take in a delta; one that has arrived before changes nothing.

        Args:
            first_seq: Number of the first piece that it holds.
            seq: Number of the last one.
            index: Which sample.
            text: What became complete.
            token_ids: What was settled: nothing where a sample ends with what was held back of its
                text. ``None`` is not told.
            logprobs: One entry a token id, if asked for.
            time: Seconds since the engine accepted the request; ``None`` takes the client's clock.
            reasoning: Reasoning that became complete.
            tool_calls: Pieces of calls.
            prompt: The next entries of the prompt.

        Raises:
            GapError: Something before it is missing, or it repeats a part of what has arrived.
        """
        if not self._follows(first_seq, seq):
            return
        if prompt and not self._is_prompt_told:
            self._prompt += prompt
        is_rest = token_ids is not None and not token_ids
        token_ids = token_ids or ()
        if not self._repeats(index, token_ids):
            self.fail(ConnectionLostError("its server was lost, and another says something else"))
            return
        if token_ids and len(token_ids) <= self._dropped.get(index, (0, 0))[1]:
            reasoning, tool_calls = "", ()  # has arrived before
        text, token_ids, logprobs = self._new(index, text, token_ids, logprobs)
        if is_rest:
            self._rests[index] = text
        if is_rest or not (text or token_ids or reasoning or tool_calls):
            return
        since = self._since_accepted() if time is None else time
        if token_ids:
            self._times.append(since)
        sample = self._samples.setdefault(index, _Text())
        sample.texts.append(text)
        sample.token_ids.extend(token_ids)
        sample.reasoning.append(reasoning)
        sample.calls += tool_calls
        if logprobs is not None:
            sample.logprobs = [*(sample.logprobs or ()), *logprobs]
        shown = None if logprobs is None else tuple(logprobs)
        event = TokenEvent(index, tuple(token_ids), text, shown, since)
        if reasoning or tool_calls:
            event = replace(event, reasoning=reasoning, tool_calls=tuple(tool_calls))
        self.events.append(event if self._is_prompt_told else self._with_prompt(event))
        self.wake()

    def _with_prompt(self, event: TokenEvent) -> TokenEvent:
        """The first event, with what was told of the prompt."""
        self._is_prompt_told = True
        return replace(event, prompt_logprobs=tuple(self._prompt)) if self._prompt else event

    def finish(
        self,
        seq: int,
        ends: Sequence[tuple[int, FinishReason, int | str | None]],
        usage: Usage,
        timing: Timing,
    ) -> None:
        """Take in the end: index, finish reason and stop reason of each sample, and the figures.

        Raises:
            GapError: A delta before it is missing.
        """
        if not self._follows(seq, seq):
            return
        since = timing.total
        if len(self._prompt) < usage.prompt_tokens:
            self._prompt.clear()  # it was cancelled while they came
        for number, (index, finish, stop) in enumerate(ends, start=1):
            sample = self._samples.setdefault(index, _Text())
            sample.finish_reason, sample.stop_reason = finish, stop
            event = TokenEvent(index, (), self._rest(index), None, since, finish, stop)
            if number == len(ends):
                event = replace(event, usage=usage, timing=timing)
            self.events.append(event if self._is_prompt_told else self._with_prompt(event))
        self._usage, self._timing = usage, timing
        self.exact = self.exact and (usage.exact or not self._has_moved)
        self._end()

    def fail(self, error: Exception) -> None:
        """End with an error, raised when everything before it is read."""
        if self.phase is not Phase.ENDED:
            self.failure = error
            self._unfinished = "error"
            self._end()

    def stop(self, reason: FinishReason) -> None:
        """End here and now, with what has arrived."""
        if self.phase is not Phase.ENDED:
            self._unfinished = reason
            since = self._since_accepted()
            open_samples = [
                index
                for index in range(self.num_samples)
                if self._samples.setdefault(index, _Text()).finish_reason is None
            ]
            self.events.extend(
                TokenEvent(index, (), self._rest(index), None, since, reason)
                for index in open_samples
            )
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
        """Return what has arrived, with the server's figures where it has ended."""
        samples = []
        for index in range(self.num_samples):
            sample = self._samples.get(index, _Text())
            samples.append(
                Sample(
                    index=index,
                    text="".join(sample.texts),
                    token_ids=tuple(sample.token_ids),
                    finish_reason=sample.finish_reason or self._unfinished,
                    stop_reason=sample.stop_reason,
                    logprobs=None if sample.logprobs is None else tuple(sample.logprobs),
                    reasoning="".join(sample.reasoning),
                    tool_calls=ToolCall.whole(sample.calls),
                    tool_errors=tuple(one.error for one in sample.calls if one.error is not None),
                )
            )
        generated = sum(len(sample.token_ids) for sample in samples)
        usage = self._usage or Usage(len(self.prompt.get("token_ids", ())), generated)
        prompt = tuple(self._prompt) if self._prompt and self._is_prompt_told else None
        return Completion(tuple(samples), usage, self._timing or self._own_timing(), prompt)

    def _follows(self, first_seq: int, seq: int) -> bool:
        """Tell whether a message brings something new; if so, count it as received."""
        if seq <= self.seq:
            return False
        if first_seq != self.seq + 1:
            raise GapError(f"{first_seq} to {seq} came after {self.seq}")
        self.seq = seq
        return True

    def _repeats(self, index: int, token_ids: Sequence[int]) -> bool:
        """Tell whether a restarted request repeats what was received before."""
        _, count = self._dropped.get(index, (0, 0))
        if not count:
            return True
        expected = self._samples[index].token_ids[-count:][: len(token_ids)]
        return expected == list(token_ids[:count])

    def _rest(self, index: int) -> str:
        """Return the text that ends a sample, as received text."""
        rest = self._rests.pop(index, "")
        self._samples[index].texts.append(rest)
        return rest

    def _new(
        self,
        index: int,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] | None,
    ) -> tuple[str, Sequence[int], Sequence[TokenLogprob] | None]:
        """Return the part of a delta that is new, for a restarted request."""
        letters, ids = self._dropped.get(index, (0, 0))
        if not letters and not ids:
            return text, token_ids, logprobs
        self._dropped[index] = max(letters - len(text), 0), max(ids - len(token_ids), 0)
        return text[letters:], token_ids[ids:], None if logprobs is None else logprobs[ids:]

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
        """Have a task that waits look again."""
        if self._changed is not None:
            self._changed.set()
