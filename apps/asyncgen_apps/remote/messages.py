"""Define the messages between an engine and its readers in other processes; all can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from asyncgen import AsyncgenError, TokenEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from asyncgen import GenerationConfig, MetricsSnapshot, Prompt, Tokenizer


class ReplicaLostError(AsyncgenError):
    """Raised if an engine was killed, drained, or cannot be reached."""


class MessageTooLargeError(AsyncgenError):
    """Raised if a request or its answer is larger than a message may be; a retry fails as well."""


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """Request for a stream.

    Attributes:
        prompt: Prompt of the caller.
        params: Keyword parameters of ``AsyncLLM.stream``.
        session: Name shared by requests that should reach the same engine; empty for none.
    """

    prompt: Prompt
    params: dict[str, Any] = field(default_factory=dict)
    session: str = ""


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """First message of a stream.

    Attributes:
        prompt_ids: Token ids of the prompt.
        seed: Seed of its random draws.
        position: Number of tokens of each sample, with its ``generated_ids``.
        fingerprint: Fingerprint of the engine.
        replica: Name of the engine, for the log.
        is_separated: True if events keep reasoning or tool calls apart from the text.
    """

    prompt_ids: list[int]
    seed: int
    position: tuple[int, ...]
    fingerprint: str | None
    replica: str
    is_separated: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """Last message of a stream or question that raised an exception."""

    error: Exception


PackedEvents: TypeAlias = list[tuple[Any, ...]]
"""Events as tuples: pickling a dataclass takes a hundred times as long."""

Item: TypeAlias = StreamStarted | PackedEvents | Failure
"""Message of a stream: first its start, then events, and a failure if it fails."""

_RARE = ("logprobs", *(each.name for each in fields(TokenEvent)[5:]))
_rare_of = attrgetter(*_RARE)
_DEFAULTS = _rare_of(TokenEvent(0, (), ""))


def packed(events: Iterable[TokenEvent]) -> PackedEvents:
    """Convert events to tuples, without the fields that most events leave at their defaults."""
    found: PackedEvents = []
    for event in events:
        usual, rare = (event.index, event.token_ids, event.text, event.time), _rare_of(event)
        found.append(usual if rare == _DEFAULTS else usual + rare)
    return found


def unpacked(given: PackedEvents, since: float = 0.0) -> Iterator[TokenEvent]:
    """Convert tuples of `packed` back to events.

    Args:
        given: The tuples.
        since: Seconds from the start of the answer to the start of this engine's part.
    """
    for index, token_ids, text, time, *rare in given:
        if rare:
            logprobs, *rest = rare
            yield TokenEvent(index, token_ids, text, logprobs, time + since, *rest)
        else:
            yield TokenEvent(index, token_ids, text, None, time + since)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Values that are the same in all engines, fetched once.

    Attributes:
        fingerprint: Fingerprint of the engines.
        tokenizer: Tokenizer of the model.
        generation_config: Default parameters of the model.
        config: Configuration of the model.
        metrics: Metrics of one of them, used until newer ones come.
    """

    fingerprint: str | None
    tokenizer: Tokenizer
    generation_config: GenerationConfig
    config: object
    metrics: MetricsSnapshot


class Call(Protocol):
    """Stream from an engine; used by one task."""

    async def next(self) -> Item | None:
        """Wait for the next message; ``None`` at the end.

        Raises:
            ReplicaLostError: The engine is lost.
            MessageTooLargeError: The request or a message is too large.
            OverloadedError: Too many requests wait for an engine.
        """

    def close(self) -> None:
        """Stop the stream in the engine. Idempotent."""


Question: TypeAlias = Literal["apply_chat_template", "count", "embed", "tokenize"]
"""What an engine is asked about a prompt."""


class Calls(Protocol):
    """Transport to the engines."""

    @property
    def is_healthy(self) -> bool:
        """True if calls may succeed; otherwise only a restart helps."""

    def stream(self, request: StreamRequest) -> Call:
        """Send a request to the engine that suits it best."""

    async def ask(self, kind: Question, *given: Any) -> Any:
        """Ask any engine.

        Raises:
            ReplicaLostError: The engine is lost.
            MessageTooLargeError: The question or the answer is too large.
            OverloadedError: Too many requests wait for an engine.
            Exception: The engine raised it.
        """

    async def metrics_by_engine(self) -> dict[str, Any]:
        """Return the newest ``MetricsSnapshot`` of each engine by its name; perhaps none.

        Raises:
            ReplicaLostError: The metrics cannot be reached now.
            MessageTooLargeError: The answer is too large.
        """
