"""Lays out what the engine gives as the protocol has it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from asyncgen_apps.websocket.replay import LONGEST, Piece, size_of_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen import Completion, Sample, TokenEvent, TokenLogprob


def piece_of(event: TokenEvent, position: int, *, with_tokens: bool) -> Piece | None:
    """Make a piece of an event.

    Args:
        event: From ``TextStream.events()``.
        position: Tokens that its sample has now.
        with_tokens: Whether the client wants ids.

    Returns:
        The piece; ``None`` if there is nothing in it for this client.
    """
    says = bool(event.text or event.reasoning or event.tool_calls)
    more: Any = {"reasoning": event.reasoning, "tool_calls": event.tool_calls}
    if not with_tokens:
        return Piece(event.index, event.text, position=position, **more) if says else None
    if not says and not event.token_ids:
        return None
    ids, logprobs = event.token_ids, event.logprobs
    return Piece(event.index, event.text, ids, logprobs, event.time, position, **more)


def prompt_pieces(event: TokenEvent) -> Iterator[Piece]:
    """Yield the prompt's log-probabilities of an event, in pieces that fit a message.

    Args:
        event: From ``TextStream.events()``, of a client that wants ids.
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
    """Lay a result out as a ``done``, but for its id and number.

    Args:
        result: Of the stream.
        aborted: It was cancelled because the server leaves; then what it has said is told again,
            as nobody can resume it.
    """
    choices = [_choice(sample, aborted) for sample in result.samples]
    first = choices[0]
    usage, timing = result.usage, result.timing
    done = {
        **{name: value for name, value in first.items() if name != "index"},
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "fingerprint": usage.fingerprint,
            "exact": usage.exact,
        },
        "timing": {
            "queue": timing.queue,
            "first_token": timing.first_token,
            "total": timing.total,
            "tokens_per_second": timing.tokens_per_second,
        },
    }
    if len(choices) > 1:
        done["choices"] = choices
    return done


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
