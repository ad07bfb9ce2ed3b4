"""Render a known call through a chat template, and read it back with a format.

Markers in the text of a template are a weak sign: families borrow each other's. A format is right
where it reads what the template writes. Templates take a message with calls in several forms, so a
call is rendered in each of them until a format reads one.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from asyncgen.errors import AsyncgenError
from asyncgen.text.chat_template import render_chat
from asyncgen.text.tool_calls.call_collector import CallCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from asyncgen.text.tool_calls.answer_parser import AnswerParser

NAME = "look_up_probe"
"""Name of the tool that is called."""

_ARGUMENTS = {"city": "Paris", "days": 2}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "A city."},
        "days": {"type": "integer", "description": "A number."},
    },
    "required": ["city", "days"],
}
_TOOL = {
    "type": "function",
    "function": {"name": NAME, "description": "Look up.", "parameters": _SCHEMA},
}
_QUESTION = "Probe question?"
_MOST_SECONDS = 1.0
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")
_IDS = ("abcdefghi", f"functions.{NAME}:0")
"""Ids of the call: Mistral asks for nine characters, and Kimi K2 writes the id for the name."""


def written_calls(template: str) -> Iterator[str]:
    """Render a known call in all forms that templates take.

    Args:
        template: Jinja text.

    Yields:
        The text of each answer that names the tool: from the end of the question on, and without
        what opens the answer. A form that the template refuses, or drops, yields nothing.
    """
    question = {"role": "user", "content": _QUESTION}
    opened = _rendered(template, [question], add_generation_prompt=True)
    deadline = time.thread_time() + _MOST_SECONDS
    for answer in _answers():
        text = _rendered(template, [question, answer])
        if time.thread_time() > deadline:
            return
        if text is None:
            continue
        written = text[text.rfind(_QUESTION) + len(_QUESTION) :] if _QUESTION in text else text
        if NAME not in written:
            continue
        yield written
        if opened and text.startswith(opened):
            yield text[len(opened) :]


def reads(parser_of: Callable[[CallCollector], AnswerParser], answer: str) -> bool:
    """Tell whether a parser finds the known call, and no other, in an answer of a template.

    Args:
        parser_of: Makes the parser.
        answer: A text of `written_calls`.
    """
    calls = CallCollector({NAME: _SCHEMA}, str)
    parser = parser_of(calls)
    parser.put(answer)
    parser.flush()
    _, deltas = parser.take()
    names = [delta.name for delta in deltas if delta.name is not None]
    if names != [NAME] or calls.count != 1 or any(delta.error for delta in deltas):
        return False
    found: Any = json.loads("".join(delta.arguments for delta in deltas))
    return bool(found == _ARGUMENTS)


def _answers() -> Iterator[Mapping[str, Any]]:
    """Yield the message with the call in each form."""
    for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS)):
        for content in ({}, {"content": None}, {"content": ""}):
            for call_id in _IDS:
                function = {"name": NAME, "arguments": arguments}
                call = {"id": call_id, "type": "function", "function": function}
                yield {"role": "assistant", **content, "tool_calls": [call]}


def _rendered(
    template: str, messages: list[Mapping[str, Any]], *, add_generation_prompt: bool = False
) -> str | None:
    """Render messages; ``None`` where the template refuses them."""
    try:
        return render_chat(
            template,
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=[_TOOL],
            variables=dict.fromkeys(_ROLES, ""),
        )
    except AsyncgenError:
        return None
