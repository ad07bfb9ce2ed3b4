"""The plain values that cross the public surface: prompts, events, results.

Nothing here waits or imports torch; every other module may import it.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from asyncgen.errors import InvalidRequestError, InWords, shorten

if TYPE_CHECKING:
    from torch import Tensor

FinishReason: TypeAlias = Literal[
    "stop", "length", "incomplete", "time", "cancelled", "aborted", "error"
]
"""Why a sample ended: ``stop`` (end-of-sequence token, stop string or a user's criterion; an answer
in a shape is complete), ``length``, ``incomplete`` (a stop string or a criterion ended an answer
before its format was complete), ``time`` (``max_time``), ``cancelled`` (the reader left),
``aborted`` (the engine was closed) or ``error`` (the stream raised)."""

Message: TypeAlias = Mapping[str, Any]
"""One chat message: ``role`` and ``content``, and whatever else the chat template reads."""

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""A text, a list of chat messages, or a list of token ids."""

Pooling: TypeAlias = Literal["last", "mean"]
"""Which hidden states make the vector of a text: the last token's, or the mean of all tokens'."""

NEVER_IDS = (str, bytes, bytearray, memoryview)
"""Sequences that are never token ids: what they hold are characters, or memory of any meaning."""

_ENOUGH = 2**16
"""Characters from which on a prompt is long, whatever else it has."""

_SHOWN = 60
"""Characters of a text that the representation of its completion shows."""

_PROMPT_FORMS = "a non-empty text, list of chat messages, or list of token ids"


def has_list(value: object) -> bool:
    """Tell whether a value gives its numbers as a list, as arrays and tensors do."""
    return callable(getattr(value, "tolist", None)) and not isinstance(value, NEVER_IDS)


def check_prompt(prompt: Prompt) -> None:
    """Refuse what is no prompt at all.

    Raises:
        InvalidRequestError: Says what a prompt may be.
    """
    if isinstance(prompt, str) and prompt:
        return
    if not isinstance(prompt, Sequence) or isinstance(prompt, NEVER_IDS) or not prompt:
        raise InvalidRequestError("prompt", prompt, _PROMPT_FORMS)
    if set(map(type, prompt)) == {int}:
        return  # there may be a million, and an event loop waits for this
    kind = Mapping if isinstance(prompt[0], Mapping) else int
    if any(not isinstance(item, kind) or isinstance(item, bool) for item in prompt):
        raise InvalidRequestError("prompt", prompt, _PROMPT_FORMS)


def is_messages(prompt: Prompt) -> bool:
    """Tell whether a checked prompt is a list of chat messages."""
    return not isinstance(prompt, str) and isinstance(prompt[0], Mapping)


def length_of(prompt: Prompt) -> int:
    """Characters of a checked prompt that must be tokenized, or how many at least; 0 for token ids.

    Args:
        prompt: What messages hold beside texts is counted roughly, and from a point on not at all:
            it may be large, and an event loop waits for this.
    """
    if isinstance(prompt, str):
        return len(prompt)
    if not is_messages(prompt):
        return 0
    total, left = 0, deque[Any](prompt)
    while left and total < _ENOUGH:
        value = left.popleft()
        if isinstance(value, str):
            total += len(value)
        elif isinstance(value, Mapping):
            total += len(value)
            left.extend(value.values())
        else:
            total += 1
            if isinstance(value, list | tuple):
                left.extend(value)
    return total


def size_of(prompt: Prompt) -> InWords:
    """Say the length of a checked prompt in words, before it is tokenized."""
    unit = "character" if isinstance(prompt, str) else "token"
    return counted(len(prompt), "message" if is_messages(prompt) else unit)


def counted(number: int, unit: str) -> InWords:
    """A number of things in words; the unit in the singular."""
    return InWords(f"{number} {unit}" if number == 1 else f"{number} {unit}s")


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative of a position: token id, its text, natural log of its probability."""

    token_id: int
    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The chosen token of a position in the raw distribution, before any processor.

    Attributes:
        token_id: The chosen token.
        token: Its text, decoded alone.
        logprob: Natural log of its probability under the raw logits.
        top: The ``top_logprobs`` most probable tokens, most probable first. Those of an engine are
            made each time they are read: kept, they would be millions of objects, which Python's
            garbage collector goes through again and again while everything waits.
    """

    token_id: int
    token: str
    logprob: float
    top: tuple[TopLogprob, ...] = ()


_TOP: Any = TokenLogprob.__dict__["top"]
"""The slot of the alternatives: as they were given, or packed."""


def packed_top(
    ids: Iterable[int], texts: Iterable[str], logprobs: Iterable[float]
) -> tuple[TopLogprob, ...]:
    """Pack alternatives for a `TokenLogprob`, in which alone they look like what this returns.

    Returns:
        One flat tuple of the three columns. The collector lets go of a tuple without containers.
    """
    return cast("tuple[TopLogprob, ...]", (*ids, *texts, *logprobs))


def _top(entry: TokenLogprob) -> tuple[TopLogprob, ...]:
    kept: tuple[Any, ...] = _TOP.__get__(entry)
    if not kept or kept[0].__class__ is not int:
        return kept
    count = len(kept) // 3
    return tuple(map(TopLogprob, kept[:count], kept[count : 2 * count], kept[2 * count :]))


def _keep_top(entry: TokenLogprob, top: tuple[TopLogprob, ...]) -> None:
    _TOP.__set__(entry, top)


# Behind the decorator, which takes an attribute of the class for a default. A dataclass reads its
# fields as attributes wherever it compares, shows, copies or pickles itself.
TokenLogprob.top = property(_top, _keep_top)  # type: ignore[assignment, misc]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the model wants called.

    Attributes:
        id: Names the call in the message with its result (``tool_call_id``).
        name: Of the tool.
        arguments: A JSON object, as the model wrote it.
    """

    id: str
    name: str
    arguments: str

    @classmethod
    def whole(cls, deltas: Sequence[ToolCallDelta]) -> tuple[ToolCall, ...]:
        """The calls that pieces come to, but for those that turned out malformed.

        Args:
            deltas: Of one sample, in order. Of a call that began before them there is no name.
        """
        pieces: dict[int, list[ToolCallDelta]] = {}
        for each in deltas:
            pieces.setdefault(each.index, []).append(each)
        return tuple(
            cls(one[0].id or "", one[0].name or "", "".join(each.arguments for each in one))
            for one in pieces.values()
            if all(each.error is None for each in one)
        )


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a call: its name at once, then its arguments as they grow.

    Attributes:
        index: Which call of the sample, from 0.
        id: Of the call, with its first piece; ``None`` later.
        name: Of the tool, with its first piece; ``None`` later.
        arguments: The next piece of the arguments, as JSON.
        error: What is wrong with the call; it is no call then, and its text is part of the text.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request, summed over its samples.

    Attributes:
        prompt_tokens: Tokens of the prompt, counted once.
        completion_tokens: Tokens generated.
        cached_tokens: Those of the prompt whose keys and values were kept from earlier requests.
        fingerprint: Of the engine; ``None`` where no tokens can be promised.
        exact: Whether every engine of this fingerprint gives the request the same tokens.
        reasoning_tokens: Those of the completion that were reasoning, its markers included.
        truncated_tokens: Those of the prompt that were left out, as `context_overflow` asked, and
            are not among its tokens.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    fingerprint: str | None = None
    exact: bool = False
    reasoning_tokens: int = 0
    truncated_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of a request, in seconds from its acceptance by the engine.

    Attributes:
        queue: Until the decode thread took it up; ``None`` where the reader left before the end.
        first_token: Until its first token; ``None`` if there was none.
        total: Until its end.
        tokens_per_second: Rate after the first token; ``None`` below two tokens.
    """

    queue: float | None
    first_token: float | None
    total: float
    tokens_per_second: float | None

    @property
    def per_token(self) -> float | None:
        """Mean seconds between tokens after the first; ``None`` below two tokens."""
        return None if not self.tokens_per_second else 1.0 / self.tokens_per_second


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Tokens and text that one decode step settled for one sample.

    Attributes:
        index: Which sample of the request, from 0.
        token_ids: Ids that were settled; empty where only held-back text came free.
        text: Text that became complete, possibly empty.
        logprobs: One entry a token id if asked for, else ``None``.
        time: Seconds since the engine accepted the request.
        finish_reason: Set on the last event of this sample.
        stop_reason: The end-of-sequence id or the stop string that ended the sample.
        usage: Set on the last event of the request.
        timing: Set on the last event of the request.
        reasoning: Reasoning that became complete, which is no part of the text.
        tool_calls: Pieces of calls, which are no part of the text either.
        prompt_logprobs: With the first event of the request, if asked for: one entry a token of
            the prompt, ``None`` for the first, which nothing stands before.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None
    time: float = 0.0
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    usage: Usage | None = None
    timing: Timing | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


class PromptProgress(NamedTuple):
    """How far the prompt of a request has been read.

    Attributes:
        total: Tokens of the prompt.
        cached: Those of them whose keys and values were there already.
        processed: Those that have been read, the cached ones included.
        seconds: Since the first step of the request; 0 while it waits in the queue.
    """

    total: int
    cached: int
    processed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished sample of a request: its whole text, ids and the reason it ended.

    An answer in a shape has its value in ``parsed``: an object of ``response_model``, a plain value
    of JSON, or the text. It is ``None`` where ``parse_error`` says why there is none.

    Attributes:
        reasoning: What the model thought before it answered; empty where it told nothing.
        tool_calls: The tools that it wants called.
        tool_errors: What is wrong with calls that are malformed, whose words are in the text.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_errors: tuple[str, ...] = ()
    parsed: Any = field(default=None, compare=False)
    parse_error: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Embedding:
    """A text as a vector.

    Attributes:
        index: Place of the text in the list that was given, from 0.
        vector: Its components, float32 ``[D]`` on the CPU.
        usage: Token counts; none were generated.
        timing: Where the time went; there is no first token.
    """

    index: int
    vector: Tensor
    usage: Usage
    timing: Timing

    def __eq__(self, other: object) -> bool:
        """Tell whether everything is the same, bit for bit."""
        if not isinstance(other, Embedding):
            return NotImplemented
        return self._rest == other._rest and self.vector.equal(other.vector)

    def __hash__(self) -> int:
        """Of all but the vector."""
        return hash(self._rest)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it cross to another process as numbers; a tensor would want to share its memory."""
        numbers = array("f", self.vector.tolist())
        return _embedding, (self.index, numbers, self.usage, self.timing)

    @property
    def _rest(self) -> tuple[int, Usage, Timing]:
        return self.index, self.usage, self.timing


def _embedding(index: int, numbers: array[float], usage: Usage, timing: Timing) -> Embedding:
    """An embedding as it was. Torch is imported late, because it takes long."""
    import torch

    return Embedding(index, torch.tensor(numbers, dtype=torch.float32, device="cpu"), usage, timing)


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of a request: one or several samples, token counts and timings.

    The attributes of the first sample are readable on the completion itself.

    Attributes:
        samples: In order.
        usage: Token counts.
        timing: Where the time went.
        prompt_logprobs: One entry a token of the prompt, ``None`` for the first, which nothing
            stands before. ``None`` where they were not asked for, or the stream was left before
            the prompt was read.
    """

    samples: tuple[Sample, ...]
    usage: Usage
    timing: Timing
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    def __repr__(self) -> str:
        """Show the first sample in a line: its shortened text, its end, and the counts."""
        counts = [counted(self.usage.completion_tokens, "token"), f"{self.timing.total:.2f} s"]
        if len(self.samples) > 1:
            counts.insert(0, counted(len(self.samples), "sample"))
        text, reason = shorten(self.text, _SHOWN), self.finish_reason
        return f"Completion(text={text}, finish_reason={reason!r}, {', '.join(counts)})"

    @property
    def text(self) -> str:
        """Text of the first sample."""
        return self.samples[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Generated ids of the first sample."""
        return self.samples[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Finish reason of the first sample."""
        return self.samples[0].finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        """The id or stop string that ended the first sample."""
        return self.samples[0].stop_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Log-probabilities of the first sample, if asked for."""
        return self.samples[0].logprobs

    @property
    def reasoning(self) -> str:
        """Reasoning of the model before its first sample."""
        return self.samples[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tools that the first sample wants called."""
        return self.samples[0].tool_calls

    @property
    def parsed(self) -> Any:
        """The value of the first sample, where its answer has a shape; else ``None``."""
        return self.samples[0].parsed

    @property
    def parse_error(self) -> str | None:
        """Reason for which a structured answer has no value; ``None`` where it has one."""
        return self.samples[0].parse_error
