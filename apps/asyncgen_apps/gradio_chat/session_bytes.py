"""Count the bytes that are kept of sessions, here and by Gradio, and bound what nobody reads.

Knows where Gradio keeps what belongs to a session; says what is there, and removes nothing.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable

    import gradio as gr

    from asyncgen_apps.gradio_chat.sessions import Session

SESSION_BYTES = 160_000
"""What Gradio keeps of every session: a copy of the description of each widget."""

LOGPROB_BYTES = 250
"""Of one token with its probability, or one alternative of it."""

MOST_UNREAD_BYTES = 8 * 2**20
"""Most bytes of frames that a session has not read; then its client has gone."""

_FEW_MESSAGES = 16
"""Unread messages that are not looked at: a client that reads has one or two."""


def size_of(*values: object) -> int:
    """Count the bytes of plain values and all that they hold, each once."""
    seen: set[int] = set()
    left = list(values)
    size = 0
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        size += sys.getsizeof(value)
        if isinstance(value, dict):
            left.extend(value)
            left.extend(value.values())
        elif isinstance(value, list | tuple | set):
            left.extend(value)
        elif isinstance(value, BaseModel):
            left.append(value.__dict__)
    return size


def session_bytes(page: gr.Blocks, key: str, session: Session | None) -> int:
    """Count what is kept of a session.

    Args:
        page: The page.
        key: The session's.
        session: Its chats, if it has any.
    """
    kept: list[object] = [] if session is None else _chats(session)
    state = page.state_holder.session_data.get(key)
    if state is not None:
        kept += [each.get("props", {}).get("value") for each in state.config_values.values()]
        kept += [state.state_data, *_changed(page, state.blocks_config)]
    queue = page._queue
    unread = queue.pending_messages_per_session.get(key)
    if unread is not None:
        kept += _messages(unread)
    for event_id in queue.pending_event_ids_session.get(key, ()):
        event = queue.event_ids_to_events.get(event_id)
        if event is not None:
            kept += [getattr(event.request, name, None) for name in ("_body", "_json")]
            kept += [event.data]
    logprobs = 0 if session is None else session.num_logprobs * LOGPROB_BYTES
    return SESSION_BYTES * (state is not None) + logprobs + size_of(*kept)


def _chats(session: Session) -> list[object]:
    history = session.history
    chats = [*history.conversations, history.current]
    if history.removed is not None:
        chats.append(history.removed[1])
    turns = {id(turn): turn for chat in chats for turn in chat.turns}
    return [
        history.settings,
        *[(turn.text, turn.figures, turn.error, turn.key) for turn in turns.values()],
    ]


def _changed(page: gr.Blocks, config: Any) -> list[object]:
    """Return the values of widgets that a session has of its own."""
    common = page.default_config.blocks
    own = [block for key, block in config.blocks.items() if common.get(key) is not block]
    return [getattr(block, name, None) for block in own for name in ("value", "choices")]


def _messages(unread: Any) -> list[object]:
    return [getattr(message, "output", None) for message in list(unread._queue)]


class UnreadLimit:
    """Ends sessions that do not read what they have asked for."""

    def __init__(self, forget: Callable[[gr.Blocks, str], None]) -> None:
        """Watch nothing yet.

        Args:
            forget: Ends a session of a page.
        """
        self._forget = forget
        self._unread: dict[str, int] = {}
        self._watched: object = None

    def watch(self, page: gr.Blocks) -> None:
        """Look at all that a page sends from now on; idempotent."""
        queue = page._queue
        if self._watched is queue:
            return
        self._watched = queue
        send = queue.send_message

        def counted(event: Any, event_message: Any) -> None:
            send(event, event_message)
            self._count(page, event.session_hash, event_message)

        queue.send_message = counted  # type: ignore[method-assign]

    def _count(self, page: gr.Blocks, key: str, message: Any) -> None:
        queue = page._queue
        waiting = queue.pending_messages_per_session.get(key)
        if waiting is None or waiting.qsize() <= _FEW_MESSAGES:
            self._unread.pop(key, None)
            return
        size = self._unread.get(key)
        news = _messages(waiting) if size is None else [getattr(message, "output", None)]
        self._unread[key] = (size or 0) + size_of(*news)
        if self._unread[key] <= MOST_UNREAD_BYTES:
            return
        del self._unread[key]
        for event_id in queue.pending_event_ids_session.get(key, ()):
            event = queue.event_ids_to_events.get(event_id)
            if event is not None:
                event.alive = False
        self._forget(page, key)
