"""Describe the state of a request in the scheduler, its outcome, and a row of a step.

Plain Python without tensors. The scheduler advances a request; sampled tokens are appended by the
batch.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.cached_sequence import NO_SLOT, CachedSequence

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("asyncgen.engine")
_clock = time.perf_counter
_NEVER = (-1.0, -1.0)


class RequestStatus(IntEnum):
    """Progress of a request, in the numbers of transformers 5.23."""

    PENDING = 0
    """Waits, for the first time or after it was preempted."""
    PREFILLING = 1
    """Its prompt is being computed, in one step or in chunks."""
    DECODING = 2
    """Its prompt is computed; one token a step."""
    FINISHED = 3
    """Ended as it should."""
    FAILED = 4
    """Ended with an error."""
    PREFILLING_SPLIT = PREFILLING
    """Older name of a prompt with a chunk in the present step and more left."""
    SPLIT_PENDING_REMAINDER = PREFILLING
    """Older name of a prompt whose next chunk waits for its step."""


_DECODING = RequestStatus.DECODING


@dataclass(slots=True)
class GenerationOutput:
    """Outcome of a request.

    Attributes:
        request_id: Id of the request.
        prompt_ids: Token ids of the prompt.
        generated_tokens: Token ids generated so far, an end-of-sequence token included.
        logprobs: Log-probabilities of these tokens, in nats, if they were requested.
        error: Message of the error; ``None`` without one.
        status: Status of the request when this was made.
        created_time: Time when it was made, in seconds of ``time.perf_counter``.
        lifespan: Times when it left the queue and when it ended, likewise; -1 if not yet.
        timestamps: Time of each token, likewise; ``None`` if not requested.
    """

    request_id: str
    prompt_ids: list[int] = field(default_factory=list)
    generated_tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    error: str | None = None
    status: RequestStatus = RequestStatus.PENDING
    created_time: float = field(default_factory=_clock)
    lifespan: tuple[float, float] = _NEVER
    timestamps: list[float] | None = None

    def is_finished(self) -> bool:
        """Return whether the request has ended or failed."""
        return self.status >= RequestStatus.FINISHED


@dataclass(slots=True, eq=False)
class RequestState(CachedSequence):
    """A waiting or running request: its tokens, its memory and its progress.

    Attributes:
        request_id: Id, unique among the requests that have not ended.
        initial_tokens: Token ids of the prompt, at least one.
        streaming: True if the tokens are read as they come.
        record_timestamps: True to note the time of each token.
        max_new_tokens: Most tokens to generate; ``None`` for no limit.
        eos_token_id: Id or ids that end it; ``None`` or a negative id for none.
        priority: Higher goes first among requests of the same client; each level is worth
            ``Scheduler.ageing`` steps of waiting.
        salt: Everything beside the tokens that the content of a block depends on (model,
            adapter). Requests share blocks only under the same salt.
        logprobs: Log-probabilities of generated tokens, if they were given.
        error: Message of the error; ``None`` without one.
        status: Its progress.
        cancelled: True if it is to end.
        created_time: Time when it was made, in seconds of ``time.perf_counter``.
        lifespan: Times when it left the queue and when it ended, likewise; -1 if not yet.
        num_preemptions: Number of times that it was preempted.
        arrival: Number in the order of arrival.
        rank: Order among requests of the same client, lowest first: (step of arrival less the
            steps that its priority is worth, ``arrival``). Set once, when it is queued.
        last_chunk: Step in which a chunk of its prompt was last scheduled.
        admitted_in: Step of its last admission.
        waits_for_prefix: True if it may still wait for another request to compute its beginning.
        prefill_chunk_size: Most tokens of it in one step; ``None`` for no limit.
        client: Client that it belongs to.
        is_whole: True if all of its tokens run in one step, however many they are.
    """

    request_id: str
    initial_tokens: list[int]
    streaming: bool = False
    record_timestamps: bool = False
    max_new_tokens: int | None = 20
    eos_token_id: int | list[int] | None = None
    priority: int = 0
    salt: bytes = b""
    logprobs: list[float] = field(default_factory=list)
    error: str | None = None
    status: RequestStatus = RequestStatus.PENDING
    cancelled: bool = False
    created_time: float = field(default_factory=_clock)
    lifespan: tuple[float, float] = _NEVER
    num_preemptions: int = 0
    arrival: int = -1
    rank: tuple[int, int] = (0, -1)
    last_chunk: int = -1
    admitted_in: int = -1
    waits_for_prefix: bool = True
    prefill_chunk_size: int | None = None
    client: str = ""
    is_whole: bool = False
    _eos_token_ids: frozenset[int] = field(init=False, repr=False)
    _timestamps: list[float] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        """Begin with the prompt."""
        if not self.tokens:
            self.tokens = list(self.initial_tokens)
        self.num_prompt_tokens = len(self.initial_tokens)
        given = self.eos_token_id
        ids = given if isinstance(given, list) else [] if given is None else [given]
        self._eos_token_ids = frozenset(number for number in ids if number >= 0)

    @property
    def generated_tokens(self) -> list[int]:
        """Token ids generated so far; a copy."""
        return self.tokens[self.num_prompt_tokens :]

    @property
    def timestamps(self) -> list[float] | None:
        """Time of each token, in seconds of ``time.perf_counter``; ``None`` if not requested."""
        return self._timestamps if self.record_timestamps else None

    @property
    def position_offset(self) -> int:
        """Position of the next token to compute."""
        return self.num_computed

    def current_len(self) -> int:
        """Return the number of tokens in its blocks."""
        return self.num_computed

    def generated_len(self) -> int:
        """Return the number of tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    def update_and_check_completion(self, token_id: int, logprob: float | None = None) -> bool:
        """Append a sampled token.

        Args:
            token_id: The token; one that ends the request is appended as well.
            logprob: Its log-probability in nats, to keep it.

        Returns:
            True if it was the last one, by its id or by the number of tokens; the status is
            ``FINISHED`` then. A request that is not decoding takes no token.
        """
        if self.status is not RequestStatus.DECODING:
            return False
        self.tokens.append(token_id)
        if logprob is not None:
            self.logprobs.append(logprob)
        if self.record_timestamps:
            self._timestamps.append(_clock())
        limit = self.max_new_tokens
        if token_id in self._eos_token_ids or (limit is not None and self.generated_len() >= limit):
            self.end()
            return True
        return False

    def end(self, error: str | None = None) -> None:
        """Note that it ended; only the first call counts.

        Args:
            error: Message of the error, if it failed.
        """
        if self.status >= RequestStatus.FINISHED:
            return
        self.error = error
        self.status = RequestStatus.FINISHED if error is None else RequestStatus.FAILED
        self.lifespan = (self.lifespan[0], _clock())

    def begin(self) -> None:
        """Note that it left the queue; only the first call counts."""
        if self.lifespan[0] < 0:
            self.lifespan = (_clock(), self.lifespan[1])

    def log_end_of_request(self) -> None:
        """Log one line with its token counts and times, at level ``INFO``."""
        begun, ended = self.lifespan
        _log.info(
            "request %s: %d prompt tokens, %d generated, waited %.3f s, ran %.3f s",
            self.request_id,
            len(self.initial_tokens),
            self.generated_len(),
            begun - self.created_time,
            ended - begun,
        )

    def to_generation_output(self) -> GenerationOutput:
        """Return its outcome so far; the lists are copies."""
        return GenerationOutput(
            request_id=self.request_id,
            prompt_ids=list(self.initial_tokens),
            generated_tokens=self.generated_tokens,
            logprobs=list(self.logprobs),
            error=self.error,
            status=self.status,
            created_time=self.created_time,
            lifespan=self.lifespan,
            timestamps=list(self._timestamps) if self.record_timestamps else None,
        )

    def fork(self, new_request_id: str) -> RequestState:
        """Make another request that goes on from the same tokens.

        Args:
            new_request_id: Id of the new request.

        Returns:
            A request that is not queued and holds no blocks; queued with the same scheduler, it
            finds the full ones in the prefix cache.
        """
        twin = RequestState(
            new_request_id,
            list(self.initial_tokens),
            streaming=self.streaming,
            record_timestamps=self.record_timestamps,
            max_new_tokens=self.max_new_tokens,
            eos_token_id=self.eos_token_id,
            priority=self.priority,
            client=self.client,
            prefill_chunk_size=self.prefill_chunk_size,
            salt=self.salt,
            tokens=list(self.tokens),
            logprobs=list(self.logprobs),
        )
        twin._timestamps = list(self._timestamps)
        return twin


@dataclass(slots=True)
class ScheduledRow:
    """Tokens of one request that run in a step.

    Attributes:
        state: The request.
        start: Position of the first token to run.
        count: Number of tokens to run, at least 1.
        pages: Its block table in the first cache group; covers at least ``start + count`` tokens.
            The request's own list: it grows later and must not be changed.
        is_last: True if these are all the tokens it has, so that the next one is sampled.
        more: Its tables in the other groups, likewise.
        source: Slot of the state before the first token; ``NO_SLOT`` at the beginning of a text
            or if the model keeps no states.
        target: Slot for the state behind the last token; ``NO_SLOT`` if the model keeps no states.
    """

    state: RequestState
    start: int
    count: int
    pages: list[int]
    is_last: bool
    more: Sequence[list[int]] = ()
    source: int = NO_SLOT
    target: int = NO_SLOT
