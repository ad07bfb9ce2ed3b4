"""From chat messages, tools and what is said of reasoning to a prompt, and how its answer is read.

Runs on a worker thread, before anything is tokenized.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncgen.engine.requests.tool_call_output import call_shape
from asyncgen.errors import ChatTemplateError, InvalidRequestError
from asyncgen.text.chat_content import only_texts
from asyncgen.text.chat_template import check_messages, select_template, template_variables
from asyncgen.text.tool_calls.call_collector import CallCollector
from asyncgen.text.tool_calls.format_detection import TOOL_NAMES, ChatFormats
from asyncgen.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.structured.output_format import OutputFormat
    from asyncgen.text.chat_methods import ChatPrompt
    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.text.tool_calls.answer_parser import AnswerParser
    from asyncgen.types import Message

OF_MESSAGES = (
    "chat_template_kwargs",
    "tools",
    "tool_choice",
    "enable_thinking",
    "reasoning_effort",
    "continue_final_message",
    "max_reasoning_tokens",
)
"""Parameters that mean something only where a chat template is rendered."""

_CALLED = ("name", "arguments")
_ID_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9
"""Of the id of a call: as many letters and digits as templates of Mistral ask for."""


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """Rules by which the text of an answer is split into text, reasoning and calls.

    Attributes:
        formats: Of the model.
        parameters: Of each tool that may be called, the schema of its arguments; ``None`` where
            none may.
        is_single: Whether the answer ends behind its first call.
        reads_reasoning: Whether reasoning is told apart from the text.
        in_reasoning: Whether the prompt has opened the reasoning.
        hidden: Special tokens that are left out of the text before it is read.
        prefix: The part of the prompt that belongs to the answer.
    """

    formats: ChatFormats
    parameters: Mapping[str, Mapping[str, Any]] | None = None
    is_single: bool = False
    reads_reasoning: bool = True
    in_reasoning: bool = False
    hidden: frozenset[int] = field(default_factory=frozenset)
    prefix: str = ""

    def reader(self, prompt_ids: Sequence[int], seed: int, index: int) -> AnswerParser:
        """Make the reader of one sample.

        Args:
            prompt_ids: Of the prompt; with the other two they name the calls, so that a request
                that goes on elsewhere names them alike.
            seed: Of the draws.
            index: Which sample.
        """
        name_of = partial(_call_name, prompt_ids, seed, index)
        calls = CallCollector(self.parameters, name_of, is_single=self.is_single)
        return self.formats.parser(
            calls,
            reads_reasoning=self.reads_reasoning,
            in_reasoning=self.in_reasoning,
            prefix=self.prefix,
        )


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the model reads it.

    Attributes:
        text: The prompt.
        reading: How its answer is read; ``None`` where all of it is text.
        in_reasoning: Whether the prompt ends within reasoning.
        shape: What the answer must look like because of its calls; ``None``: nothing.
        prompt: Encodes it with what the conversation says as text; ``None``: all of it is encoded.
    """

    text: str
    reading: AnswerReading | None = None
    in_reasoning: bool = False
    shape: OutputFormat | None = None
    prompt: ChatPrompt | None = None


def render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    given: Mapping[str, Any],
    formats: ChatFormats,
) -> Rendered:
    """Render a conversation.

    Args:
        tokenizer: Has the chat template.
        messages: Form not checked yet.
        given: Parameters of the request, values checked.
        formats: Of the model.

    Raises:
        InvalidRequestError: Messages, tools or variables that the template cannot take.
        ChatTemplateError: The chat template refuses the messages, or there is none.
    """
    check_messages(messages)
    messages = [_read_calls(each, f"messages[{i}]") for i, each in enumerate(only_texts(messages))]
    tools, parameters = _tools(given, formats)
    names = _names_read(tokenizer, has_tools=tools is not None)
    if tools is not None and names is not None and "tools" not in names:
        allowed = "the chat template of this model has no place for tools; leave them out"
        raise InvalidRequestError("tools", _named(tools), allowed)
    variables = _variables(given, names)
    if tools is not None:
        variables["tools"] = [dict(tool) for tool in tools]
    goes_on = bool(given.get("continue_final_message"))
    if goes_on:
        variables["continue_final_message"] = True
    variables["add_generation_prompt"] = not goes_on
    prompt = None
    if getattr(tokenizer, "special_tokens_in_content", "allow") == "allow":
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **variables)
    else:
        prompt = tokenizer.render_conversation(messages, **variables)
        text = prompt.text
    said = messages[-1].get("content") if goes_on else text
    in_reasoning = _ends_in_reasoning(said if isinstance(said, str) else "", formats, goes_on)
    is_declared = formats.response is not None
    reads = is_declared or formats.reasoning is not None
    reads = reads and given.get("separate_reasoning") is not False
    if given.get("max_reasoning_tokens") is not None and formats.reasoning is None:
        allowed = (
            "the chat template of this model marks no reasoning; where it does reason, load it with"
            " a `reasoning_format`"
        )
        raise InvalidRequestError("max_reasoning_tokens", given["max_reasoning_tokens"], allowed)
    if not reads and parameters is None and not is_declared:
        return Rendered(text, None, in_reasoning, prompt=prompt)
    shape = None
    if parameters is not None:
        shape = call_shape(tokenizer, formats, given, in_reasoning=in_reasoning)
    reading = AnswerReading(
        formats,
        parameters,
        is_single=given.get("parallel_tool_calls") is False,
        reads_reasoning=reads,
        in_reasoning=in_reasoning,
        hidden=_hidden(tokenizer, formats, given),
        prefix=formats.opened_by(text) if is_declared else "",
    )
    return Rendered(text, reading, in_reasoning, shape, prompt)


def refuse_without_messages(given: Mapping[str, Any]) -> None:
    """Refuse what means something only for messages, as the prompt is a text or token ids.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    for name in OF_MESSAGES:
        if given.get(name) not in (None, [], (), {}):
            allowed = (
                "only messages go through a chat template, and this prompt does not; leave it out"
            )
            raise InvalidRequestError(name, given[name], allowed)


def _tools(
    given: Mapping[str, Any], formats: ChatFormats
) -> tuple[Sequence[Mapping[str, Any]] | None, dict[str, Mapping[str, Any]] | None]:
    """The tools that the template is told of, and what arguments each of them takes."""
    tools, choice = given.get("tools") or None, given.get("tool_choice", "auto")
    if tools is None:
        if choice not in ("auto", "none"):
            raise InvalidRequestError("tool_choice", choice, "needs `tools`")
        return None, None
    if choice == "none":
        return None, None
    if not formats.reads_calls:
        allowed = (
            "how this model calls tools is not known from its chat template; load it with a "
            f"`tool_format`, one of {', '.join(TOOL_NAMES)}"
        )
        raise InvalidRequestError("tools", _named(tools), allowed)
    functions = {tool["function"]["name"]: tool["function"] for tool in tools}
    if not isinstance(choice, str) and choice["function"]["name"] not in functions:
        allowed = f"one of the tools: {', '.join(functions)}"
        raise InvalidRequestError("tool_choice", choice["function"]["name"], allowed)
    return tools, {name: each.get("parameters") or {} for name, each in functions.items()}


def _named(tools: Sequence[Mapping[str, Any]]) -> str:
    """Tools for a message: their names."""
    return ", ".join(tool["function"]["name"] for tool in tools[:8])


def _names_read(tokenizer: Tokenizer, *, has_tools: bool) -> frozenset[str] | None:
    """Variables that the chat template reads; ``None`` where it is not ours to look at."""
    templates = getattr(tokenizer, "chat_template", None)
    if templates is None:
        return None
    try:
        return template_variables(select_template(templates, None, has_tools=has_tools))
    except ChatTemplateError:
        return None  # rendering says so


def _variables(given: Mapping[str, Any], names: frozenset[str] | None) -> dict[str, Any]:
    """Collect the variables of the template beside messages and tools."""
    variables = dict(given.get("chat_template_kwargs") or {})
    thinking, effort = given.get("enable_thinking"), given.get("reasoning_effort")
    switches = [name for name in ("enable_thinking", "thinking") if names and name in names]
    if effort is not None:
        if names is not None and "reasoning_effort" in names:
            _set(variables, "reasoning_effort", effort)
        elif switches:
            _set(variables, switches[0], effort != "none")
        else:
            raise InvalidRequestError("reasoning_effort", effort, _NO_VARIABLE)
    if thinking is not None:
        if not switches:
            raise InvalidRequestError("enable_thinking", thinking, _NO_VARIABLE)
        _set(variables, switches[0], thinking)
    return variables


_NO_VARIABLE = "the chat template of this model knows no such variable; leave it out"


def _set(variables: dict[str, Any], name: str, value: object) -> None:
    """Set a variable that may have been given otherwise."""
    if variables.setdefault(name, value) != value:
        allowed = f"it contradicts `{name}`, which is {variables[name]!r}; give one"
        raise InvalidRequestError("chat_template_kwargs", variables[name], allowed)


def _ends_in_reasoning(text: str, formats: ChatFormats, goes_on: bool) -> bool:
    """Tell whether a prompt has opened the reasoning, and not closed it."""
    reasoning = formats.reasoning
    if reasoning is None:
        return False
    begin, end = reasoning.begin.strip(), reasoning.end.strip()
    if goes_on:
        return text.lstrip().startswith(begin) and end not in text
    return text.rstrip().endswith(begin)


def _read_calls(message: Message, name: str) -> Message:
    """A message whose calls have their arguments as templates want them: as mappings."""
    calls = message.get("tool_calls")
    if calls is None:
        return message
    if not isinstance(calls, list | tuple):
        raise InvalidRequestError(f"{name}.tool_calls", calls, "a list of calls")
    if not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    read = [_read_call(call, f"{name}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return {**message, "tool_calls": read}


def _read_call(call: Any, name: str) -> dict[str, Any]:
    if isinstance(call, ToolCall):
        call = asdict(call)
    if isinstance(call, Mapping) and "function" not in call and "name" in call:
        # As the library and the WebSocket protocol return it.
        rest = {key: value for key, value in call.items() if key not in ("name", "arguments")}
        call = {"type": "function", **rest, "function": {k: call.get(k) for k in _CALLED}}
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        allowed = 'a call such as {"id": …, "function": {"name": …, "arguments": …}}'
        raise InvalidRequestError(name, call, allowed)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    if arguments is not None and not isinstance(arguments, Mapping):
        arguments = None
    if arguments is None:
        given = function.get("arguments")
        raise InvalidRequestError(f"{name}.function.arguments", given, "a JSON object")
    return {**call, "function": {**function, "arguments": dict(arguments)}}


def _hidden(tokenizer: Tokenizer, formats: ChatFormats, given: Mapping[str, Any]) -> frozenset[int]:
    """Special tokens that are no markers; none where they are to be seen."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if given.get("skip_special_tokens") is False or backend is None:
        return frozenset()
    markers = formats.markers
    return frozenset(
        number
        for number, token in backend.get_added_tokens_decoder().items()
        if token.special and not any(token.content in marker for marker in markers)
    )


def _call_name(prompt_ids: Sequence[int], seed: int, index: int, number: int) -> str:
    """Letters and digits that are those of no other call, and the same wherever it is read."""
    digest = hashlib.blake2b(array("q", prompt_ids).tobytes(), digest_size=16)
    digest.update(f"{seed} {index} {number}".encode())
    value = int.from_bytes(digest.digest(), "big")
    characters = []
    for _ in range(_ID_LENGTH):
        value, rest = divmod(value, len(_ID_CHARACTERS))
        characters.append(_ID_CHARACTERS[rest])
    return "".join(characters)
