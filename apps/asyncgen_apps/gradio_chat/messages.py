"""Lays a conversation out as the messages of a ``gr.Chatbot``, and finds the way back.

An answer takes several messages: its reasoning, folded; its text; its figures, folded. Knows the
form of the messages, and no widget.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, TypeAlias

from asyncgen_apps.gradio_chat.reasoning import split_thinking

if TYPE_CHECKING:
    from asyncgen_apps.gradio_chat.conversations import Conversation, Turn


ChatMessage: TypeAlias = dict[str, Any]
"""``role``, ``content`` and ``metadata``, as ``gr.Chatbot`` takes them."""

HEADLINE = ("tokens", "first token", "speed", "ended by")
"""The figures that are shown without unfolding."""


def as_messages(conversation: Conversation, running: str = "") -> list[ChatMessage]:
    """Lay out all turns.

    Args:
        conversation: Conversation to show.
        running: State of a running answer before its first word, in words.

    Returns:
        The messages.
    """
    shown: list[ChatMessage] = []
    last = len(conversation.turns) - 1
    for number, turn in enumerate(conversation.turns):
        shown.extend(_messages(turn, running if number == last else ""))
    return shown


def turn_number(conversation: Conversation, message: int) -> int:
    """Return the index of the turn that a message belongs to.

    Args:
        conversation: Conversation on the screen, without a running answer.
        message: Index of the message on the screen.
    """
    before = 0
    for number, turn in enumerate(conversation.turns):
        before += len(_messages(turn, ""))
        if message < before:
            return number
    return max(0, len(conversation.turns) - 1)


def _messages(turn: Turn, running: str) -> list[ChatMessage]:
    if turn.role == "user":
        return [{"role": "user", "content": turn.text}]
    shown: list[ChatMessage] = []
    parts = split_thinking(turn.text)
    if parts.thought is not None:
        is_open = parts.is_thinking and bool(running)
        title = "Thinking" if is_open else "Thoughts"
        shown.append(_folded(title, parts.thought, "pending" if is_open else "done"))
    if parts.answer:
        shown.append({"role": "assistant", "content": parts.answer})
    elif running and parts.thought is None:
        shown.append(_folded(running, "", "pending"))
    if turn.error:
        shown.append({"role": "assistant", "content": _failure(turn.error)})
    if turn.figures:
        shown.append(_folded(_headline(turn.figures), _rest(turn.figures), "done"))
    return shown or [{"role": "assistant", "content": "*no text*"}]


def _failure(error: str) -> str:
    """Return an error in a frame; empty lines let its Markdown be drawn."""
    return f'<div class="failure">\n\n{escape(error, quote=False)}\n\n</div>'


def _folded(title: str, content: str, status: str) -> ChatMessage:
    """Return a message that the chat shows as a line to unfold."""
    return {
        "role": "assistant",
        "content": content,
        "metadata": {"title": title, "status": status},
    }


def _headline(figures: dict[str, str]) -> str:
    return " · ".join(figures[name] for name in HEADLINE if name in figures)


def _rest(figures: dict[str, str]) -> str:
    """Return the statistics that the headline leaves out."""
    return " · ".join([f"{k} {v}" for k, v in figures.items() if k not in HEADLINE])
