"""Convert events and results of the engine to pieces and messages of the protocol."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from asyncgen_apps.websocket.replay import LONGEST, Piece, size_of_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen import Completion, Sample, TokenEvent, TokenLogprob, Usage

_USAGE = (
    *("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"),
    *("fingerprint", "exact"),
)


def piece_of(event: TokenEvent, position: int, *, with_tokens: bool) -> Piece | None:
    """Make a piece of an event.

    Args:
        event: Event of ``TextStream.events()``.
        position: Number of tokens that its sample has now.
        with_tokens: True if the client wants token ids.

    Returns:
        The piece; ``None`` if it has nothing that this client wants.
    """
    has_text = bool(event.text or event.reasoning or event.tool_calls)
    more: Any = {"reasoning": event.reasoning, "tool_calls": event.tool_calls}
    if not with_tokens:
        return Piece(event.index, event.text, position=position, **more) if has_text else None
    if not has_text and not event.token_ids:
        return None
    ids, logprobs = event.token_ids, event.logprobs
    return Piece(event.index, event.text, ids, logprobs, event.time, position, **more)


def prompt_pieces(event: TokenEvent) -> Iterator[Piece]:
    """Yield the prompt's log-probabilities of an event, in pieces that fit a message.

    Args:
        event: Event of ``TextStream.events()``, for a client that wants token ids.
    """
    entries: list[TokenLogprob | None] = []
    size = 0
    for entry in event.prompt_logprobs or ():
        entries.append(entry)
        size += size_of_entry(entry)
        if size > LONGEST:
            yield Piece(event.index, "", (), time=event.time, prompt_logprobs=tuple(entries))
            entries, size = [], 0
    if entries:
        yield Piece(event.index, "", (), time=event.time, prompt_logprobs=tuple(entries))


def done_message(result: Completion, *, aborted: bool = False) -> dict[str, Any]:
    """Build a ``done`` message without ``id`` and ``seq``.

    Args:
        result: Result of the stream.
        aborted: True if the server cancelled it to shut down; the message then has the whole text,
            because nobody can resume the request here.
    """
    choices = [_choice(sample, aborted) for sample in result.samples]
    first = choices[0]
    done = {
        **{name: value for name, value in first.items() if name != "index"},
        "usage": _usage(result.usage),
        "timing": asdict(result.timing),
    }
    if len(choices) > 1:
        done["choices"] = choices
    return done


def _usage(usage: Usage) -> dict[str, Any]:
    """Token counts; those that were left out only where there are some."""
    counts = {name: getattr(usage, name) for name in _USAGE}
    if usage.truncated_tokens:
        counts["truncated_tokens"] = usage.truncated_tokens
    return counts


def _choice(sample: Sample, aborted: bool) -> dict[str, Any]:
    reason = sample.finish_reason
    if aborted and reason == "cancelled":
        reason = "aborted"
    choice: dict[str, Any] = {"index": sample.index, "finish_reason": reason}
    if sample.stop_reason is not None:
        choice["stop_reason"] = sample.stop_reason
    if sample.tool_calls:
        choice["tool_calls"] = [asdict(call) for call in sample.tool_calls]
    if reason == "aborted":
        choice["text"] = sample.text
    return choice
