"""Tells the reasoning of an answer from the answer itself.

Works on the text so far, also while it grows; knows no chat and no screen.
"""

from __future__ import annotations

from dataclasses import dataclass

OPEN = "<think>"
CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class SplitAnswer:
    """Answer, split into reasoning and text.

    Attributes:
        thought: Text between the tags; ``None`` if the answer does not begin with them.
        answer: Text after the tags, or all of it.
        is_thinking: True if the closing tag has not come yet.
    """

    thought: str | None
    answer: str
    is_thinking: bool = False


def split_thinking(text: str) -> SplitAnswer:
    """Split an answer into reasoning and reply.

    The reasoning is what a ``<think>`` at the very beginning opens. Some chat templates write the
    opening tag into the prompt: then an answer holds a closing tag only. A tag further down is
    part of the reply, which may well speak of tags.

    Args:
        text: The answer so far.

    Returns:
        Its parts; an unfinished tag at the end belongs to neither.
    """
    body = text.lstrip()
    if body and len(body) < len(OPEN) and OPEN.startswith(body):
        return SplitAnswer("", "", is_thinking=True)
    opened = body.startswith(OPEN)
    before, closed, after = text.partition(CLOSE)
    if not opened and (not closed or OPEN in before):
        return SplitAnswer(None, text)
    thought = before.lstrip()[len(OPEN) :] if opened else before
    if closed:
        return SplitAnswer(thought.strip(), after.lstrip())
    return SplitAnswer(_without_partial(thought).strip(), "", is_thinking=True)


def _without_partial(text: str) -> str:
    """Leave out the beginning of a closing tag at the end."""
    for length in range(len(CLOSE) - 1, 0, -1):
        if text.endswith(CLOSE[:length]):
            return text[:-length]
    return text
