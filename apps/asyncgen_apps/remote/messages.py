"""Messages between an engine and its readers in other processes; each can be pickled."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from asyncgen import AsyncgenError, TokenEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from asyncgen import GenerationConfig, MetricsSnapshot, Prompt, Tokenizer


class ReplicaLostError(AsyncgenError):
    """The engine that was asked is gone: killed, drained, or out of reach."""


class MessageTooLargeError(AsyncgenError):
    """A request, or its answer, is larger than what may cross; so it would be if asked again."""


@dataclass(frozen=True, slots=True)
class Order:
    """A stream that is wanted.

    Attributes:
        prompt: As the caller gave it.
        params: Keyword parameters of ``AsyncLLM.stream``.
        session: What shall go to the same engine again where it can; empty: nothing.
    """

    prompt: Prompt
    params: dict[str, Any] = field(default_factory=dict)
    session: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """A stream has started.

    Attributes:
        prompt_ids: Token ids of the prompt.
        seed: Of its draws.
        position: Tokens of each sample; ``generated_ids`` count.
        fingerprint: Of the engine.
        replica: The engine's name, for the log.
        is_separated: Whether events tell reasoning or calls of tools apart from the text.
    """

    prompt_ids: list[int]
    seed: int
    position: tuple[int, ...]
    fingerprint: str | None
    replica: str
    is_separated: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """A stream has ended with an error; the last that comes of it."""

    error: Exception


Packed: TypeAlias = list[tuple[Any, ...]]
"""Events, as little as says them: a dataclass takes a hundred times as long to cross as a tuple."""

Item: TypeAlias = Begun | Packed | Failed
"""What comes of an order, in turn: the beginning, events, and perhaps a failure."""

_RARE = ("logprobs", *(each.name for each in fields(TokenEvent)[5:]))
_rare_of = attrgetter(*_RARE)
_USUAL = _rare_of(TokenEvent(0, (), ""))


def packed(events: Iterable[TokenEvent]) -> Packed:
    """Make events ready to cross; what is the same in most of them is left out."""
    found: Packed = []
    for event in events:
        own, rare = (event.index, event.token_ids, event.text, event.time), _rare_of(event)
        found.append(own if rare == _USUAL else own + rare)
    return found


def unpacked(given: Packed, since: float = 0.0) -> Iterator[TokenEvent]:
    """The events again.

    Args:
        given: What `packed` has made of them.
        since: Seconds that their times are behind those of the whole answer.
    """
    for index, token_ids, text, time, *rare in given:
        if rare:
            logprobs, *rest = rare
            yield TokenEvent(index, token_ids, text, logprobs, time + since, *rest)
        else:
            yield TokenEvent(index, token_ids, text, None, time + since)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that are the same in all engines and are asked for once.

    Attributes:
        fingerprint: Of the engines.
        tokenizer: The model's tokenizer.
        generation_config: The model's own defaults.
        config: The model's configuration.
        figures: Of one of them at that time, until others are known.
    """

    fingerprint: str | None
    tokenizer: Tokenizer
    generation_config: GenerationConfig
    config: object
    figures: MetricsSnapshot


class Call(Protocol):
    """An order under way; used by one task."""

    async def next(self) -> Item | None:
        """Wait for what comes next; ``None`` at the end.

        Raises:
            ReplicaLostError: Nothing more will come.
            MessageTooLargeError: The order, or what came of it, cannot cross.
            OverloadedError: Too many wait for an engine already.
        """

    def close(self) -> None:
        """Nobody waits for more: stop the work. Idempotent."""


class Calls(Protocol):
    """The way to the engines."""

    @property
    def is_healthy(self) -> bool:
        """True if a call may be answered; otherwise only a restart helps."""

    def stream(self, order: Order) -> Call:
        """Give an order to the engine that suits it best."""

    async def ask(self, kind: Literal["count", "embed", "tokenize"], *given: Any) -> Any:
        """Ask any engine.

        Raises:
            ReplicaLostError: The one that was asked is gone.
            MessageTooLargeError: The question, or its answer, cannot cross.
            OverloadedError: Too many wait for an engine already.
            Exception: What the engine raised.
        """

    async def figures(self) -> dict[str, Any]:
        """The newest figures of each engine, ``MetricsSnapshot`` by name; none is an answer, too.

        Raises:
            ReplicaLostError: Nobody tells them now.
            MessageTooLargeError: They cannot cross.
        """
