"""A request, as the decode thread sees it: ids, checked parameters, and where its events go."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from asyncgen.engine.metrics import RequestProgress
from asyncgen.runtime.user_code import UserDraws
from asyncgen.text.sequence_text import SequenceText

if TYPE_CHECKING:
    from asyncgen.engine.metrics import EngineMetrics
    from asyncgen.engine.requests.admission import Seat
    from asyncgen.engine.requests.conversation import AnswerReading
    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.engine.requests.pooling import HiddenPool
    from asyncgen.engine.sampling.given_scores import GivenScores
    from asyncgen.engine.sampling.prompt_logprobs import PromptLogprobs
    from asyncgen.generation.generate.custom import CustomMethod
    from asyncgen.generation.logits.base import LogitsProcessorList
    from asyncgen.generation.stopping.cancel import CancelCriteria
    from asyncgen.generation.stopping.stop_checks import StopChecks
    from asyncgen.generation.strategies.token_healing import Healing
    from asyncgen.structured.grammar import Grammar
    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.types import FinishReason, TokenEvent
    from streamers import StopStrings


clock = time.perf_counter
"""The engine's clock: requests are stamped with it where they are made."""

_numbers = itertools.count(1)


class Sink(Protocol):
    """Receiver of the events of a request. Called on the decode thread; must never wait."""

    def put_nowait(self, item: TokenEvent | BaseException, /) -> object:
        """Take in an event, or the exception that ends the stream."""


@dataclass(frozen=True, slots=True)
class GivenTokens:
    """Tokens that a sequence generated before its request came here.

    Attributes:
        token_ids: Generated tokens, in order; may be none.
        text: Text of the sequence so far, which the reader has, and what is held back of it.
        shown: That text, as far as nothing is held back of it.
        reason: Finish reason if the sequence has ended with them; ``None`` where it goes on.
        stop: The end-of-sequence id or the stop string that ended it.
    """

    token_ids: tuple[int, ...]
    text: SequenceText
    shown: str = ""
    reason: FinishReason | None = None
    stop: int | str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One prompt with all that was checked and prepared for it; nothing of it changes later.

    What changes while it runs is in `progress`, and in the `Sequence` of each of its samples.

    Attributes:
        prompt_ids: The prompt, at least one id.
        params: Checked parameters.
        processors: All logits processors, built-in and user-written, in order.
        stop_checks: When its rows end; holds ``cancel`` and the time limit.
        cancel: The truth about cancellation; a message to the thread only wakes it.
        sink: Where its events go.
        continues_text: Whether the text goes on from the prompt's (a text prompt), or stands
            alone (an answer to messages).
        healing: How to choose the prompt's last token again, if that is wanted.
        shown: Text of the prompt behind ``prompt_ids[:-1]``, where that token is chosen again.
        accepted_at: Clock of the engine when it was posted, in seconds.
        decoder_ids: What the decoder of a model with an encoder begins with; the encoder reads
            the prompt. ``None`` where there is no encoder.
        method: A decoding method that the user wrote, in place of a strategy.
        alone: Why the shared batch cannot serve it; ``None`` where it can.
        num_pages: Pages that all its keys and values could take, if it runs alone.
        stops: The search for stop strings, ready to be copied for each sample; ``None`` for none.
        place: Its seat in the engine; ``None`` where requests are not counted.
        fingerprint: Of the engine; ``None`` where nothing is promised.
        given: What each sample had generated before; empty where nothing was.
        pool: What its hidden states go to, if it asks for a vector and for no token.
        scores: What those of its prompt go to, if its log-probabilities are asked for.
        truncated_tokens: Tokens of the prompt that were left out, as it was too long.
        follows: What those of its given tokens go to, if a sampler follows their scores.
        reading: How the text of its answers is taken apart; ``None`` where all of it is text.
        grammar: Compiled from the shape that its answers must have; ``None``: they are free.
        id: Short name for logs, and in the batch.
        progress: Its times and counts while it runs.
    """

    prompt_ids: list[int]
    params: RequestParams
    processors: LogitsProcessorList
    stop_checks: StopChecks
    cancel: CancelCriteria
    sink: Sink
    continues_text: bool
    healing: Healing | None = None
    shown: str = ""
    accepted_at: float = 0.0
    decoder_ids: list[int] | None = None
    method: CustomMethod | None = None
    alone: str | None = None
    num_pages: int = 0
    stops: StopStrings | None = None
    place: Seat | None = None
    fingerprint: str | None = None
    given: tuple[GivenTokens, ...] = ()
    pool: HiddenPool | None = None
    scores: PromptLogprobs | None = None
    truncated_tokens: int = 0
    follows: GivenScores | None = None
    reading: AnswerReading | None = None
    grammar: Grammar | None = None
    id: str = field(default_factory=lambda: f"req-{next(_numbers)}")
    progress: RequestProgress = field(default_factory=RequestProgress)

    @property
    def starting_ids(self) -> list[int]:
        """Ids that the decoder continues."""
        return self.prompt_ids if self.decoder_ids is None else self.decoder_ids

    @property
    def is_exact(self) -> bool:
        """True if every engine of this fingerprint gives it the same tokens."""
        promised = self.fingerprint is not None and self.progress.has_old_weights
        if not promised or self.alone is not None:
            return False
        return not self.given or self.params.fingerprint == self.fingerprint

    @property
    def given_texts(self) -> list[str]:
        """The text that each sample had generated before."""
        rows = range(self.params.num_samples)
        return [each.shown for each in self.given] if self.given else ["" for _ in rows]

    @property
    def user_draws(self) -> UserDraws:
        """The random numbers of the code that the user passed with it."""
        if self.progress.user_draws is None:
            self.progress.user_draws = UserDraws(self.params.seed)
        return self.progress.user_draws

    def tokens_of(self, index: int) -> list[int]:
        """Return the ids that a sample continues: the first ids, and those generated before."""
        ids = self.starting_ids
        return [*ids, *self.given[index].token_ids] if self.given else list(ids)

    def text_of(self, index: int, tokenizer: Tokenizer | None) -> SequenceText:
        """Begin the text of a sequence; empty without a tokenizer."""
        parser, hidden = None, frozenset[int]()
        if self.reading is not None and tokenizer is not None:
            parser = self.reading.reader(self.prompt_ids, self.params.seed, index)
            hidden = self.reading.hidden
        return SequenceText(
            tokenizer,
            self.prompt_ids if self.continues_text else None,
            skip_special_tokens=self.params.skip_special_tokens,
            stops=self.stops,
            # The token that ends a structured answer is no part of it, whatever its text is.
            omitted=frozenset() if self.grammar is None else self.stop_checks.eos_token_ids,
            parser=parser,
            hidden=hidden,
        )

    def goes_on(self, index: int) -> bool:
        """Tell whether a sample goes on behind the tokens that it was given."""
        return not self.given or self.given[index].reason is None


def sample_name(request_id: str, index: int) -> str:
    """Name a sample of a request: the first as the request, as in the reference."""
    return f"{request_id}__child#{index - 1}" if index else request_id


def fail(request: Request, error: BaseException, metrics: EngineMetrics | None = None) -> None:
    """Tell a request's reader what ended it.

    Args:
        request: It has no further event after this.
        error: What the reader will be raised.
        metrics: Counts it as an error.
    """
    if request.place is not None:
        request.place.left()
    if metrics is not None:
        metrics.request_finished(request, "error", clock())
    request.sink.put_nowait(error)
