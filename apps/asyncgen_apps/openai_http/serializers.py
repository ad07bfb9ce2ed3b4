"""Lays out replies as the API does: whole ones and chunks, chat and text.

A serializer belongs to one request and keeps what its chunks need (offsets, counts). Knows events;
not where they come from, nor how a reply is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from asyncgen import Sample, TokenEvent, TokenLogprob, Usage
    from asyncgen_apps.openai_http.echo import Echo, EchoedToken


REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LEAST_LOGPROB = -9999.0
"""What the API says of a token that is as good as impossible; JSON has no infinity."""

Object = dict[str, object]

_ALL = 2**62
"""Tokens of a prompt that is told in one piece."""


@dataclass(frozen=True, slots=True)
class CompletionHead:
    """Fields at the top of every reply and chunk of a request.

    Attributes:
        id: Name of the completion.
        created: When, in seconds since 1970.
        model: The model's name, as the client gave it.
    """

    id: str
    created: int
    model: str


class Serializer(Protocol):
    """Lays out the replies of one route.

    Attributes:
        logprobs: True if the reply has log-probabilities.
        token_ids: True if the reply has token ids.
        echo: Prompts to repeat in the reply; ``None`` repeats none.
    """

    logprobs: bool
    token_ids: bool
    echo: Echo | None

    def prompt(self, index: int) -> Iterable[Object]:
        """Yield chunks with the prompt of a choice."""

    def opening(self, prompt_ids: Sequence[Sequence[int]], choices: int) -> Iterable[Object]:
        """Yield the chunks before the first text, for all choices of all prompts."""

    def chunk(self, index: int, event: TokenEvent) -> Object:
        """Return the chunk of an event."""

    def empty(self, index: int) -> Object:
        """Return a chunk in which nothing is said."""

    def closing(self, usage: Usage) -> Object:
        """Return the last chunk: no choices, only counts."""

    def whole(
        self, prompt_ids: Sequence[Sequence[int]], samples: Sequence[Sample], usage: Usage
    ) -> Object:
        """Return the reply in one piece; samples are in the order of the choices."""


def counts_object(usage: Usage) -> Object:
    """Return token counts under the API's names, and tokens that were left out if there are any."""
    left_out = {"truncated_tokens": usage.truncated_tokens} if usage.truncated_tokens else {}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, **left_out},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def usage_object(usage: Usage) -> Object:
    """Return the token counts of a request, its fingerprint, and if its tokens are exact."""
    return {**counts_object(usage), "fingerprint": usage.fingerprint, "exact": usage.exact}


@dataclass(slots=True)
class ChatSerializer:
    """``chat.completion`` and its chunks.

    Attributes:
        head: Fields at the top.
        logprobs: True if the reply has log-probabilities.
        token_ids: True if the reply has token ids.
        calls: Indices of the well-formed tool calls of each choice so far.
        echo: Always ``None``.
    """

    head: CompletionHead
    logprobs: bool = False
    token_ids: bool = False
    calls: dict[int, set[int]] = field(default_factory=dict)
    echo: Echo | None = None

    def prompt(self, index: int) -> Iterable[Object]:
        """Yield nothing."""
        return ()

    def opening(self, prompt_ids: Sequence[Sequence[int]], choices: int) -> Iterable[Object]:
        """Yield the first delta of every choice, with its role."""
        for index in range(choices):
            delta: Object = {"role": "assistant", "content": ""}
            yield {**self._chunk(index, delta, None, None, None), **self._prompt(prompt_ids)}

    def chunk(self, index: int, event: TokenEvent) -> Object:
        """Return the chunk of an event."""
        delta: Object = {"content": event.text} if event.text or not event.finish_reason else {}
        if event.reasoning:
            delta = {"content": event.text} if event.text else {}
            delta["reasoning_content"] = event.reasoning
        if event.tool_calls:
            delta = {
                **({"content": event.text} if event.text else {}),
                **self._called(index, event),
            }
            if event.reasoning:
                delta["reasoning_content"] = event.reasoning
        logprobs = _chat_logprobs(event.logprobs or ()) if self.logprobs else None
        ids: Object = {"token_ids": list(event.token_ids)} if self.token_ids else {}
        reason = _ending(event.finish_reason, bool(self.calls.get(index)))
        return self._chunk(index, delta, logprobs, reason, event.stop_reason, ids)

    def _called(self, index: int, event: TokenEvent) -> Object:
        """Return pieces of tool calls as the API has them, with the errors of malformed ones."""
        good = self.calls.setdefault(index, set())
        errors = [each.error for each in event.tool_calls if each.error is not None]
        calls = []
        for each in event.tool_calls:
            if each.error is not None:
                good.discard(each.index)
                continue
            good.add(each.index)
            function: Object = {} if each.name is None else {"name": each.name}
            call: Object = {"index": each.index}
            if each.id is not None:
                call |= {"id": each.id, "type": "function"}
            calls.append({**call, "function": {**function, "arguments": each.arguments}})
        found: Object = {"tool_calls": calls} if calls else {}
        return {**found, "tool_call_errors": errors} if errors else found

    def empty(self, index: int) -> Object:
        """Return a chunk in which nothing is said."""
        return self._chunk(index, {}, None, None, None)

    def closing(self, usage: Usage) -> Object:
        """Return the counts, and an empty list of choices."""
        return {**self._top("chat.completion.chunk"), "choices": [], "usage": usage_object(usage)}

    def whole(
        self, prompt_ids: Sequence[Sequence[int]], samples: Sequence[Sample], usage: Usage
    ) -> Object:
        """Return the reply with all messages."""
        choices = [
            {
                "index": index,
                "message": _message(sample),
                "logprobs": _chat_logprobs(sample.logprobs or ()) if self.logprobs else None,
                "finish_reason": _ending(sample.finish_reason, bool(sample.tool_calls)),
                "stop_reason": sample.stop_reason,
                **({"token_ids": list(sample.token_ids)} if self.token_ids else {}),
            }
            for index, sample in enumerate(samples)
        ]
        return {
            **self._top("chat.completion"),
            **self._prompt(prompt_ids),
            "choices": choices,
            "usage": usage_object(usage),
        }

    def _prompt(self, prompt_ids: Sequence[Sequence[int]]) -> Object:
        """Return the token ids of the prompt if the reply has them."""
        return {"prompt_token_ids": prompt_ids[0]} if self.token_ids else {}

    def _chunk(
        self,
        index: int,
        delta: Object,
        logprobs: Object | None,
        finish_reason: str | None,
        stop_reason: int | str | None,
        more: Object | None = None,
    ) -> Object:
        choice: Object = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            **(more or {}),
        }
        if finish_reason is not None:
            choice["stop_reason"] = stop_reason
        return {**self._top("chat.completion.chunk"), "choices": [choice]}

    def _top(self, kind: str) -> Object:
        head = self.head
        return {"id": head.id, "object": kind, "created": head.created, "model": head.model}


@dataclass(slots=True)
class CompletionSerializer:
    """``text_completion``; chunks and whole replies look alike.

    Attributes:
        head: Fields at the top.
        logprobs: True if the reply has log-probabilities.
        top: Number of alternatives of each token.
        token_ids: True if the reply has token ids.
        offsets: Characters so far, for each choice.
        echo: Prompts to repeat in the reply; ``None`` repeats none.
    """

    head: CompletionHead
    logprobs: bool = False
    top: int = 0
    token_ids: bool = False
    offsets: dict[int, int] = field(default_factory=dict)
    echo: Echo | None = None

    def prompt(self, index: int) -> Iterable[Object]:
        """Yield the prompt of a choice, a part at a time."""
        assert self.echo is not None
        for text, places in self.echo.pieces(index):
            logprobs = self._lists(places) if self.logprobs else None
            yield {**self._top(), "choices": [_text_choice(index, text, logprobs, None, None)]}

    def opening(self, prompt_ids: Sequence[Sequence[int]], choices: int) -> Iterable[Object]:
        """Yield the token ids of the prompts if the reply has them."""
        for index in range(choices if self.token_ids else 0):
            ids = prompt_ids[index * len(prompt_ids) // choices]
            choice = _text_choice(index, "", None, None, None)
            yield {**self._top(), "choices": [{**choice, "prompt_token_ids": ids}]}

    def chunk(self, index: int, event: TokenEvent) -> Object:
        """Return the chunk of an event."""
        logprobs = self._logprobs(index, event.logprobs or ()) if self.logprobs else None
        choice = _text_choice(index, event.text, logprobs, event.finish_reason, event.stop_reason)
        if self.token_ids:
            choice["token_ids"] = list(event.token_ids)
        return {**self._top(), "choices": [choice]}

    def empty(self, index: int) -> Object:
        """Return a chunk in which nothing is said."""
        return {**self._top(), "choices": [_text_choice(index, "", None, None, None)]}

    def closing(self, usage: Usage) -> Object:
        """Return the counts, and an empty list of choices."""
        return {**self._top(), "choices": [], "usage": usage_object(usage)}

    def whole(
        self, prompt_ids: Sequence[Sequence[int]], samples: Sequence[Sample], usage: Usage
    ) -> Object:
        """Return the reply with all texts."""
        choices = []
        for index, one in enumerate(samples):
            text: str = ""
            places: Sequence[EchoedToken] = ()
            if self.echo is not None:
                [(text, places)] = self.echo.pieces(index, _ALL)
            logprobs = self._logprobs(index, one.logprobs or (), places) if self.logprobs else None
            choices.append(
                _text_choice(index, text + one.text, logprobs, one.finish_reason, one.stop_reason)
            )
            if self.token_ids:
                ids = prompt_ids[index * len(prompt_ids) // len(samples)]
                choices[-1] |= {"token_ids": list(one.token_ids), "prompt_token_ids": ids}
        return {**self._top(), "choices": choices, "usage": usage_object(usage)}

    def _logprobs(
        self, index: int, entries: Sequence[TokenLogprob], prompt: Sequence[EchoedToken] = ()
    ) -> Object:
        """Return the lists of generated tokens, after those of the prompt."""
        if self.echo is not None:
            offsets = self.echo.place(index, entries)
        else:
            offsets, offset = [], self.offsets.get(index, 0)
            for entry in entries:
                offsets.append(offset)
                offset += len(entry.token)
            self.offsets[index] = offset
        own = [(entry.token, entry, at) for entry, at in zip(entries, offsets, strict=True)]
        return self._lists([*prompt, *own])

    def _lists(self, places: Sequence[EchoedToken]) -> Object:
        """Return four lists with an entry for every token."""
        entries = [entry for _, entry, _ in places]
        logprobs = [
            None if entry is None else max(entry.logprob, LEAST_LOGPROB) for entry in entries
        ]
        top = [None if entry is None else _by_text(entry) for entry in entries]
        return {
            "tokens": [token for token, _, _ in places],
            "token_logprobs": logprobs,
            "top_logprobs": top if self.top else None,
            "text_offset": [offset for _, _, offset in places],
        }

    def _top(self) -> Object:
        head = self.head
        return {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
        }


def _message(sample: Sample) -> Object:
    """Return a whole answer; rare fields are left out if empty."""
    content = sample.text if sample.text or not sample.tool_calls else None
    message: Object = {"role": "assistant", "content": content, "refusal": None}
    if sample.reasoning:
        message["reasoning_content"] = sample.reasoning
    if sample.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in sample.tool_calls
        ]
    if sample.tool_errors:
        message["tool_call_errors"] = list(sample.tool_errors)
    return message


def _ending(reason: str | None, has_calls: bool) -> str | None:
    """Return the finish reason of a choice as the API names it."""
    return "tool_calls" if reason == "stop" and has_calls else reason


def _text_choice(
    index: int,
    text: str,
    logprobs: Object | None,
    finish_reason: str | None,
    stop_reason: int | str | None,
) -> Object:
    choice: Object = {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }
    if finish_reason is not None:
        choice["stop_reason"] = stop_reason
    return choice


def _by_text(entry: TokenLogprob) -> dict[str, float]:
    """Return the alternatives and the chosen token by text; of equal texts the likelier stays."""
    found: dict[str, float] = {}
    for one in entry.top:
        found.setdefault(one.token, max(one.logprob, LEAST_LOGPROB))
    found.setdefault(entry.token, max(entry.logprob, LEAST_LOGPROB))
    return found


def _chat_logprobs(entries: Sequence[TokenLogprob]) -> Object:
    return {
        "content": [
            {
                **_chat_logprob(entry.token, entry.logprob),
                "top_logprobs": [_chat_logprob(one.token, one.logprob) for one in entry.top],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def _chat_logprob(token: str, logprob: float) -> Object:
    """Return a token with its bytes; ``None`` for a part of a character."""
    known = REPLACEMENT not in token
    return {
        "token": token,
        "logprob": max(logprob, LEAST_LOGPROB),
        "bytes": list(token.encode()) if known else None,
    }
