"""One row of the batch: the tokens of a request, how far they are computed, and its pages; and the
rows of a step as they are chosen.

Knows no tensors and no events. The scheduler moves it along; the reader of the sampled tokens
appends them.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.block_pool import held, most_pages
from asyncgen.engine.kv_cache.state_slots import NO_SLOT
from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.engine.kv_cache.block_pool import BlockPool

_log = logging.getLogger("asyncgen.engine")
_clock = time.perf_counter
_NEVER = (-1.0, -1.0)


class RequestStatus(IntEnum):
    """Where a request is on its way."""

    PENDING = 0
    """Waits, for the first time or after it was preempted."""
    PREFILLING = 1
    """The rest of its prompt is in the present step."""
    PREFILLING_SPLIT = 2
    """A chunk of its prompt is in the present step, and more is left."""
    SPLIT_PENDING_REMAINDER = 3
    """A chunk of its prompt is computed; the next one waits for its step."""
    DECODING = 4
    """Its prompt is computed; one token a step."""
    FINISHED = 5
    """Ended as it should."""
    FAILED = 6
    """Ended with an error."""


_DECODING = RequestStatus.DECODING


@dataclass(slots=True)
class GenerationOutput:
    """What became of a request.

    Attributes:
        request_id: Its id.
        prompt_ids: Token ids of the prompt.
        generated_tokens: Token ids generated so far, an end-of-sequence token included.
        logprobs: Their log-probabilities, in nats, where they were asked for.
        error: What went wrong; ``None`` if nothing did.
        status: Where it was when this was made.
        created_time: When it was made, in seconds of ``time.perf_counter``.
        lifespan: When it left the queue and when it ended, likewise; -1 for what did not happen.
        timestamps: When each token came, likewise; ``None`` if that was not asked for.
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
        """Whether nothing more will come, because it ended or because it failed."""
        return self.status in (RequestStatus.FINISHED, RequestStatus.FAILED)


@dataclass(slots=True, eq=False)
class RequestState:
    """One row of the batch on its way.

    Attributes:
        request_id: Unique among the requests that have not ended.
        initial_tokens: Token ids of the prompt, at least one.
        streaming: Whether the tokens are read as they come.
        record_timestamps: Whether to note when each token came.
        max_new_tokens: How many tokens to generate at most; ``None`` for no limit.
        eos_token_id: The id or ids that end it; ``None`` or a negative id for none.
        priority: Higher goes first among those of its client; each level is worth
            ``Scheduler.ageing`` steps of waiting.
        salt: What the content of its pages depends on beside its tokens (model, adapter):
            requests share pages only under the same salt.
        tokens: Prompt and generated tokens; sampled ones are appended here.
        logprobs: Log-probabilities of generated tokens, where they were given.
        error: What went wrong; ``None`` if nothing did.
        status: Where it is.
        cancelled: Whether it shall end.
        created_time: When it was made, in seconds of ``time.perf_counter``.
        lifespan: When it left the queue and when it ended, likewise; -1 for what did not happen.
        pages: Its page table in the first group of layers, one page for each ``page_size``
            tokens; empty while it waits.
        more: Its page tables in the other groups.
        slot: Where its state is, in a model that keeps any; ``NO_SLOT`` while it has none.
        next_slot: Where its next step leaves it; ``NO_SLOT`` where that is not decided.
        keeps_states: Whether anybody could find a state of it that is kept.
        partings: Pages behind which other texts part from its prompt: its state is kept there.
        newest_snapshot: Pages behind which its state was last kept, of what it generated.
        room: How many tokens all of its tables have pages for.
        num_gone: How many pages, in all tables, it has given back behind windows.
        num_computed: How many of ``tokens`` have their keys and values in the pages.
        num_cached: How many of these were found in pages when it was last admitted.
        num_preemptions: How often it had to give its pages up.
        arrival: Its number in the order of arrival.
        rank: Its place among waiting and running ones, lowest first: (step of arrival less
            what its priority is worth, ``arrival``). Set once, when it is queued.
        block_hashes: Keys of its first pages, as far as they were needed.
        num_published: How many of its pages were offered to others.
        last_chunk: Step in which a chunk of its prompt was last scheduled.
        admitted_in: Step in which it was last admitted.
        admitted_with: How many tokens it had then.
        waits_for_prefix: Whether it may still wait for another request to compute its beginning.
        prefill_chunk_size: Most tokens of it that run in one step; ``None`` for no limit.
        client: Whom it belongs to.
        is_whole: Whether all of its tokens run in one step, however many they are.
        is_withdrawn: Whether what it computed was taken away from others (`groups.withdraw`), and
            the end of its text is not to be left to them either.
    """

    request_id: str
    initial_tokens: list[int]
    streaming: bool = False
    record_timestamps: bool = False
    max_new_tokens: int | None = 20
    eos_token_id: int | list[int] | None = None
    priority: int = 0
    salt: bytes = b""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    error: str | None = None
    status: RequestStatus = RequestStatus.PENDING
    cancelled: bool = False
    created_time: float = field(default_factory=_clock)
    lifespan: tuple[float, float] = _NEVER
    pages: list[int] = field(default_factory=list)
    more: list[list[int]] = field(default_factory=list)
    slot: int = NO_SLOT
    next_slot: int = NO_SLOT
    keeps_states: bool = True
    partings: list[int] = field(default_factory=list)
    newest_snapshot: int = 0
    room: int = 0
    num_gone: int = 0
    num_computed: int = 0
    num_cached: int = 0
    num_preemptions: int = 0
    arrival: int = -1
    rank: tuple[int, int] = (0, -1)
    block_hashes: list[bytes] = field(default_factory=list)
    num_published: int = 0
    last_chunk: int = -1
    admitted_in: int = -1
    admitted_with: int = 0
    waits_for_prefix: bool = True
    prefill_chunk_size: int | None = None
    client: str = ""
    is_whole: bool = False
    is_withdrawn: bool = False
    _eos_token_ids: frozenset[int] = field(init=False, repr=False)
    _timestamps: list[float] = field(init=False, repr=False, default_factory=list)

    def __post_init__(self) -> None:
        """Begin with the prompt."""
        if not self.tokens:
            self.tokens = list(self.initial_tokens)
        given = self.eos_token_id
        ids = given if isinstance(given, list) else [] if given is None else [given]
        self._eos_token_ids = frozenset(number for number in ids if number >= 0)

    @property
    def generated_tokens(self) -> list[int]:
        """Token ids generated so far; a copy."""
        return self.tokens[len(self.initial_tokens) :]

    @property
    def timestamps(self) -> list[float] | None:
        """When each token came, in seconds of ``time.perf_counter``, if that was asked for."""
        return self._timestamps if self.record_timestamps else None

    @property
    def allocated_blocks(self) -> int:
        """How many pages it holds."""
        return sum(map(len, self.tables)) - self.num_gone

    @property
    def tables(self) -> list[list[int]]:
        """Its page tables, one a group of layers; the tables themselves in a new list."""
        return [self.pages, *self.more]

    @property
    def position_offset(self) -> int:
        """Position of the next token to compute."""
        return self.num_computed

    def current_len(self) -> int:
        """How many tokens are in its pages."""
        return self.num_computed

    def generated_len(self) -> int:
        """How many tokens were generated so far."""
        return len(self.tokens) - len(self.initial_tokens)

    def update_and_check_completion(self, token_id: int, logprob: float | None = None) -> bool:
        """Append a sampled token.

        Args:
            token_id: The token; one that ends the request is appended as well.
            logprob: Its log-probability in nats, if it shall be kept.

        Returns:
            Whether it was the last one, by its id or by the number of tokens; the status is
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
            error: What went wrong, if it failed.
        """
        if self.status in (RequestStatus.FINISHED, RequestStatus.FAILED):
            return
        self.error = error
        self.status = RequestStatus.FINISHED if error is None else RequestStatus.FAILED
        self.lifespan = (self.lifespan[0], _clock())

    def begin(self) -> None:
        """Note that it left the queue; only the first call counts."""
        if self.lifespan[0] < 0:
            self.lifespan = (_clock(), self.lifespan[1])

    def drop_pages(self) -> list[int]:
        """Empty its page tables.

        Returns:
            What was in them, for the caller to release.
        """
        pages = held(self.tables)
        self.pages, self.more = [], []
        self.num_computed = self.num_published = self.room = self.num_gone = 0
        return pages

    def log_end_of_request(self) -> None:
        """Write one line about how it went to the log, at level ``INFO``."""
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
        """What became of it so far; the lists are copies."""
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
            new_request_id: Its id.

        Returns:
            A request that was not queued yet and holds no pages: queued with the same scheduler,
            it finds those that are full.
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
    """Tokens of one request that run in this step.

    Attributes:
        state: The request.
        start: Position of the first token to run.
        count: How many tokens to run, at least 1.
        pages: Its page table in the first group of layers; covers at least ``start + count``
            tokens. The request's own list: it grows later and must not be changed.
        is_last: Whether these are all the tokens it has, so that the next one is to be sampled.
        more: Its tables in the other groups, likewise.
        source: Slot of the state before the first token, in a model that keeps any; ``NO_SLOT``:
            the text begins.
        target: Slot for the state behind the last token, likewise.
    """

    state: RequestState
    start: int
    count: int
    pages: list[int]
    is_last: bool
    more: Sequence[list[int]] = ()
    source: int = NO_SLOT
    target: int = NO_SLOT


def check_new(state: RequestState, pool: BlockPool) -> None:
    """Refuse a request that was queued before, or could not run even if it had the whole pool.

    Raises:
        InvalidRequestError: Names what is wrong.
    """
    if state.status is not RequestStatus.PENDING or state.pages:
        raise InvalidRequestError(
            "state", state.request_id, "was queued before; queue a new one, or a `fork` of it"
        )
    if not state.tokens:
        raise InvalidRequestError("initial_tokens", [], "must hold at least one token")
    if state.max_new_tokens is not None and state.max_new_tokens < 1:
        raise InvalidRequestError(
            "max_new_tokens", state.max_new_tokens, "must be at least 1, or None for no limit"
        )
    # The key of the last token is never computed.
    left = max((state.max_new_tokens or 1) - state.generated_len(), 1)
    needed = most_pages(pool.windows, pool.page_size, len(state.tokens) + left - 1)
    if needed > pool.num_pages:
        raise InvalidRequestError(
            "max_new_tokens" if state.max_new_tokens else "initial_tokens",
            state.max_new_tokens or len(state.tokens),
            f"with {len(state.tokens)} tokens before them this takes {needed} pages of "
            f"{pool.page_size} tokens and the cache has {pool.num_pages}; ask for less or "
            "give the cache more memory",
        )
