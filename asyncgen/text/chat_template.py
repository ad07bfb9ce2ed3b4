"""Render chat messages to a prompt, with the template of the checkpoint.

Templates are programs from strangers, so they run in jinja's immutable sandbox, and within limits
(:mod:`asyncgen.text.template_sandbox`). Knows nothing of tokens and files.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from asyncgen.errors import MOST_SAID, ChatTemplateError, InvalidRequestError, clip
from asyncgen.text.chat_content import has_parts, is_text, joined_texts, reads_parts
from asyncgen.text.message_forms import (
    REASONING_FIELDS,
    Null,
    is_none,
    message_forms,
)
from asyncgen.text.template_budget import rendering
from asyncgen.text.template_rewriting import check_size
from asyncgen.text.template_sandbox import BoundedEnvironment
from asyncgen.text.template_turns import taking_turns

if TYPE_CHECKING:
    from jinja2.parser import Parser

    from asyncgen.types import Message

    Limits = Callable[[object], AbstractContextManager[object]]

_NO_TEMPLATE = (
    "this tokenizer has no chat template: pass `chat_template=` (jinja text), give a plain text "
    "prompt instead of messages, or load the instruction-tuned version of the model"
)

MOST_SOURCE = 2**17
"""Characters of a template that is compiled; those of models have some ten thousand."""

_MARKER = "asyncgenContinuesHere"


def check_messages(conversation: object, parameter: str = "messages") -> None:
    """Check the structure of a conversation.

    Args:
        conversation: Messages of the caller.
        parameter: Name for the message of the error.

    Raises:
        InvalidRequestError: It is not a non-empty list of mappings, a role is missing, or a
            content is neither a text, nor a list of content parts, nor absent beside tool calls.
    """
    if isinstance(conversation, str | bytes | Mapping) or not isinstance(conversation, Sequence):
        raise InvalidRequestError(
            parameter, conversation, 'give a list of messages, each like {"role": …, "content": …}'
        )
    if not conversation:
        raise InvalidRequestError(parameter, conversation, "give at least one message")
    for index, message in enumerate(conversation):
        _check_message(message, f"{parameter}[{index}]")


def select_template(
    templates: str | Mapping[str, str] | None, choice: str | None, *, has_tools: bool
) -> str:
    """Pick the template text for one rendering.

    Args:
        templates: The tokenizer's template, or its templates by name.
        choice: A template's name or jinja text from the caller, or ``None``.
        has_tools: Tools are offered; then a template named ``tool_use`` is preferred.

    Returns:
        The jinja text.

    Raises:
        ChatTemplateError: There is no template, or none named ``default``.
    """
    if isinstance(templates, Mapping):
        if choice is not None:
            return templates.get(choice, choice)
        if has_tools and "tool_use" in templates:
            return templates["tool_use"]
        if "default" in templates:
            return templates["default"]
        if templates:
            raise ChatTemplateError(
                "the tokenizer has several chat templates and none is called `default`: "
                f"pass `chat_template=` one of {sorted(templates)}"
            )
    elif choice is not None:
        return choice
    elif templates is not None:
        return templates
    raise ChatTemplateError(_NO_TEMPLATE)


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = False,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, object] | None = None,
    trust_template: bool = False,
) -> str:
    """Render messages to the text that the model was trained on.

    Args:
        template: Jinja text. Compiled once, then kept.
        messages: At least one message with a ``role``. A content of text parts is joined, a part
            a line, unless the template loops over the parts. Reasoning under one of its names
            is there under all of them. A template that fails is tried again with other forms
            of a content that is null and of arguments (:mod:`asyncgen.text.message_forms`).
        add_generation_prompt: Open the assistant's turn at the end.
        continue_final_message: End the text right after the last message's content, so that the
            model continues it; not together with ``add_generation_prompt``.
        tools: JSON schemas of the functions that the model may call.
        documents: Documents that the model may quote.
        variables: More names for the template, such as ``bos_token`` or ``enable_thinking``.
        trust_template: The template is one's own: it may call whatever jinja's sandbox allows,
            without limits.

    Returns:
        The prompt text.

    Raises:
        InvalidRequestError: The messages, tools or options are malformed.
        ChatTemplateError: The template is broken, was stopped by the sandbox, or refused.
    """
    if not isinstance(template, str):
        raise InvalidRequestError("chat_template", template, "give jinja text")
    if not isinstance(trust_template, bool):
        raise InvalidRequestError("trust_template", trust_template, "must be True or False")
    check_messages(messages)
    _check_mappings(tools, "tools", "the JSON schema of a function")
    _check_mappings(documents, "documents", "a document")
    if continue_final_message:
        _check_continuation(messages, add_generation_prompt)
    names: dict[str, object] = {
        **(variables or {}),
        "tools": list(tools) if tools is not None else None,
        "documents": list(documents) if documents is not None else None,
        "add_generation_prompt": add_generation_prompt,
    }
    compiled = _compile(template, trust_template)
    if any(map(has_parts, messages)) and not _reads_parts(template):
        messages = joined_texts(messages)
    begun = time.thread_time()  # all forms together take as long as one may
    limits: Limits = nullcontext if trust_template else partial(rendering, begun=begun)
    failure: ChatTemplateError | None = None
    for form in message_forms(messages):
        try:
            text = _render(compiled, form, names, limits)
            if continue_final_message:
                return _cut_at_marker(_render(compiled, _mark_final(form), names, limits), text)
            return text
        except ChatTemplateError as error:
            if isinstance(error.__cause__, SecurityError):
                raise
            failure = failure or error
    assert failure is not None
    try:
        raise failure
    finally:
        del failure  # which holds this frame


@lru_cache(maxsize=64)
def template_variables(template: str) -> frozenset[str]:
    """Return the names that a template reads and does not set itself.

    Args:
        template: Jinja text; an invalid one has no names.

    Raises:
        ChatTemplateError: It is too large to tell.
    """
    with _compiling():
        _check_source(template)
        try:
            program = _environment(False).parse(template)
            check_size(program)
            return frozenset(meta.find_undeclared_variables(program))
        except (jinja2.TemplateError, RecursionError, ValueError) as error:
            if isinstance(error, SecurityError):
                raise
            return frozenset()


@lru_cache(maxsize=64)
def template_literals(template: str) -> frozenset[str]:
    """Return the texts that stand in a template, whether it writes them or looks for them.

    Args:
        template: Jinja text that compiles.
    """
    with _compiling():
        program = _environment(False).parse(template)
    found = {each.data for each in program.find_all(nodes.TemplateData)}
    found |= {each.value for each in program.find_all(nodes.Const) if isinstance(each.value, str)}
    return frozenset(found)


class _Refusal(Exception):
    """Raised by ``raise_exception`` of a template."""


class _GenerationBlock(Extension):
    """Accept ``{% generation %}…{% endgeneration %}``, which marks the assistant's words.

    Training uses it for masks. Here the block renders its body.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block into its body, with a separate scope as in every block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: object) -> None:
    raise _Refusal(clip(str(message), MOST_SAID))


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, >, & and ' for HTML, which a prompt must not contain.
    if isinstance(value, Null):
        str(value)  # raises
    if isinstance(value, Iterator) and not isinstance(value, LoopContext):  # of `map`, `select`
        value = list(value)
    return json.dumps(
        value,
        default=_as_json,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _as_json(value: object) -> None:
    """Write a null content within a message as ``null``; anything else is no JSON."""
    if not isinstance(value, Null):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


@lru_cache(maxsize=2)
def _environment(trusted: bool) -> jinja2.Environment:
    filters = {"tojson": _tojson}
    tests = {"none": is_none}
    functions = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    options: dict[str, Any] = {
        "trim_blocks": True,
        "lstrip_blocks": True,
        "extensions": [_GenerationBlock, loopcontrols],
    }
    if not trusted:
        return BoundedEnvironment(filters=filters, tests=tests, functions=functions, **options)
    environment = ImmutableSandboxedEnvironment(**options)
    environment.filters |= filters
    environment.tests |= tests
    environment.globals |= functions
    return environment


@contextmanager
def _compiling() -> Iterator[None]:
    """Name what is wrong with a template that is parsed or compiled in the block."""
    try:
        with taking_turns():
            yield
    except jinja2.TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"line {error.lineno} of the chat template is not valid jinja: {error.message}"
        ) from error
    except SecurityError as error:
        raise _stopped(error, "") from error
    except (SyntaxError, RecursionError, MemoryError, ValueError, OverflowError) as error:
        # Jinja writes Python code: a `break` outside of a loop, or nesting that is too deep.
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise ChatTemplateError(f"the chat template cannot be compiled: {reason}") from error


def _compile(template: str, trusted: bool = False) -> jinja2.Template:
    found = _compiled(template, trusted)
    if isinstance(found, str):
        raise ChatTemplateError(found)
    return found


@lru_cache(maxsize=64)
def _compiled(template: str, trusted: bool) -> jinja2.Template | str:
    """Return a template, or why it is refused: who asks again and again has it parsed once."""
    try:
        with _compiling():
            if not trusted:
                _check_source(template)
            return _environment(trusted).from_string(template)
    except ChatTemplateError as error:
        return str(error)


def _check_source(template: str) -> None:
    if len(template) > MOST_SOURCE:
        raise SecurityError(
            f"it has {len(template)} characters, more than the {MOST_SOURCE} of a template"
        )


@lru_cache(maxsize=64)
def _reads_parts(template: str) -> bool:
    with _compiling():
        return reads_parts(_environment(False).parse(template))


def _render(
    template: jinja2.Template,
    messages: Sequence[Message],
    names: Mapping[str, object],
    limits: Limits,
) -> str:
    try:
        given = {**names, "messages": list(messages)}
        with limits(given):
            return template.render(given)
    except _Refusal as refusal:
        raise ChatTemplateError(f"the chat template refused the messages: {refusal}") from refusal
    except SecurityError as error:
        raise _stopped(error, _where(error)) from error
    except Exception as error:
        raise ChatTemplateError(
            f"the chat template failed{_where(error)}: {type(error).__name__}: "
            f"{clip(str(error), MOST_SAID)}; "
            "check that the messages have the form that this model expects"
        ) from error


def _stopped(error: SecurityError, where: str) -> ChatTemplateError:
    return ChatTemplateError(
        f"the sandbox stopped the chat template{where}: {error}; do not use this template, or pass "
        "`trust_template=True` if it is your own"
    )


def _where(error: BaseException) -> str:
    """Name the template line of an error, if it has one."""
    lines = [
        template.get_corresponding_lineno(line)
        if (template := frame.f_globals.get("__jinja_template__"))
        else line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename in ("<template>", "<unknown>")
    ]
    return f" on line {lines[-1]}" if lines else ""


def _check_message(message: object, name: str) -> None:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            name, message, 'give a mapping such as {"role": "user", "content": "…"}'
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequestError(
            f"{name}.role", role, 'give a text such as "system", "user", "assistant" or "tool"'
        )
    for field in REASONING_FIELDS:
        if not isinstance(message.get(field), str | None):
            raise InvalidRequestError(f"{name}.{field}", message[field], "give a text")
    content = message.get("content")
    if isinstance(content, str) or (content is None and len(message) > 1):
        return
    allowed = "give a text or a list of content parts"
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        if all(isinstance(part, str | Mapping) for part in content):
            return
        allowed = 'give parts such as {"type": "text", "text": "…"}'
    raise InvalidRequestError(f"{name}.content", content, allowed)


def _check_mappings(value: object, parameter: str, meaning: str) -> None:
    if value is None:
        return
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Sequence):
        raise InvalidRequestError(parameter, value, f"give a list, each entry {meaning}")
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise InvalidRequestError(
                f"{parameter}[{index}]", item, f"give {meaning}, as a mapping"
            )


def _check_continuation(messages: Sequence[Message], add_generation_prompt: bool) -> None:
    if add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message",
            True,
            "it cannot be combined with `add_generation_prompt`, which opens a new message",
        )
    content = messages[-1].get("content")
    if not isinstance(content, str) and not any(is_text(part) for part in content or ()):
        raise InvalidRequestError(
            f"messages[{len(messages) - 1}].content",
            content,
            "`continue_final_message` needs a text to continue",
        )


def _mark_final(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with the marker after the last text of the last one."""
    last = messages[-1]
    content = last["content"]
    if isinstance(content, str):
        return [*messages[:-1], {**last, "content": content + _MARKER}]
    index = max(number for number, part in enumerate(content) if is_text(part))
    parts = [*content]
    parts[index] = {**parts[index], "text": parts[index]["text"] + _MARKER}
    return [*messages[:-1], {**last, "content": parts}]


def _cut_at_marker(marked: str, plain: str) -> str:
    """Return ``plain`` up to the end of the last message's content.

    Args:
        marked: The chat, rendered with the marker after the last content.
        plain: The same chat without the marker.
    """
    if _MARKER not in marked:
        raise ChatTemplateError(
            "the last message does not appear in the rendered chat, so it cannot be continued: "
            "this template changes or drops it; leave `continue_final_message` out"
        )
    text = marked[: marked.rindex(_MARKER)]
    # A template that trims contents keeps the spaces before the marker, but not in the plain chat.
    return text if plain.startswith(text) else text.rstrip()
