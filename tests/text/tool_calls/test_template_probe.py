"""A format is taken where it reads what a template writes, and nowhere else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from asyncgen.text.tool_calls import format_detection
from asyncgen.text.tool_calls.format_detection import find_formats
from asyncgen.text.tool_calls.template_probe import NAME, written_calls
from tests.cases import for_each
from tests.text.tool_calls.templates import BY_FORMAT, MISTRAL, MISTRAL_LIST, QWEN, tagged, template

if TYPE_CHECKING:
    from collections.abc import Iterator

_JSON = "call.function.arguments | tojson"
_OBJECT = f"'{{\"name\": \"' + call.function.name + '\", \"arguments\": ' + ({_JSON}) + '}}'"


def name_of(text: str) -> str | None:
    """Return the name of the format that is found in a template."""
    tools = find_formats(text).tools
    return None if tools is None else tools.name


OTHERS = {
    "tags of Qwen Coder between other markers": tagged(
        "'<other:call>\\n<function=' + call.function.name + '>\\n'",
        "'<parameter=' + key + '>' + value|string + '</parameter>\\n'",
        "'</function>\\n</other:call>'",
    ),
    "the marker of Qwen before other tags": tagged(
        "'<tool_call>[<invoke name=' + call.function.name + '>'",
        "'<' + key + '>' + value|string + '</' + key + '>'",
        "'</invoke></tool_call>'",
    ),
    "headers of Llama around tags": template(
        f"'<of=' + call.function.name + '>' + ({_JSON}) + '</of>'"
    )
    + '{# <|start_header_id|> "parameters" <|python_tag|> #}',
    "instructions for Qwen's marker, and another one": template(f"'<calls>[' + {_OBJECT} + ']'")
    + "{{ 'write <tool_call>' }}",
    "the marker of Mistral, and no JSON": template(
        "'[TOOL_CALLS]' + call.function.name + '(' + (call.function.arguments | tojson) + ')'"
    ),
    "arguments that are lost": template("'<tool_call>{\"name\": \"' + call.function.name + '\"}'"),
}


@for_each("text", list(OTHERS.values()))
def test_format_that_does_not_read_the_calls_of_a_template_is_not_taken(text: str) -> None:
    assert NAME in "".join(written_calls(text))  # so calls are written, in no format that is known
    assert name_of(text) is None


@for_each("name", list(BY_FORMAT))
def test_format_is_found_whatever_else_a_template_mentions(name: str) -> None:
    signs = " ".join(
        text
        for other in ("granite", "glm", "deepseek", "mistral")
        for text in BY_FORMAT[other].split("'")
        if "<" in text or "[" in text
    )
    assert name_of(BY_FORMAT[name] + "{#" + signs.replace("#}", "") + "#}") == name


def test_format_that_writes_alike_is_taken_where_two_read() -> None:
    assert name_of(MISTRAL) == "mistral" and name_of(MISTRAL_LIST) == "mistral_list"
    assert name_of(MISTRAL_LIST + "{# [ARGS] #}") == "mistral_list"


ONLY = {
    "arguments as text": template(
        '\'<tool_call>{"name": "\' + call.function.name + \'", "arguments": \''
        " + call.function.arguments + '}</tool_call>'"
    ),
    "a content that is there": QWEN.replace(
        "{%- for call in",
        "{%- if message.role == 'assistant' and message.content is undefined %}"
        "{{ raise_exception('no content') }}{%- endif %}{%- for call in",
    ),
    "an id with nine letters": QWEN.replace(
        "{%- for call in message.tool_calls or [] %}",
        "{%- for call in message.tool_calls or [] %}{%- if call.id|length != 9 %}"
        "{{ raise_exception('nine') }}{%- endif %}",
    ),
    "special tokens": "{{ bos_token + eos_token }}" + QWEN,
}


@for_each("text", list(ONLY.values()))
def test_template_that_takes_a_call_in_one_form_only_is_read(text: str) -> None:
    assert name_of(text) == "qwen"


_DROPS = "{% for message in messages %}{{ message.content }}{% endfor %}"


@for_each(
    ("text", "name"),
    [
        (_DROPS + "{{ 'answer with <tool_call>' }}", "qwen"),
        (_DROPS + "{{ 'answer with <|tool_call|>' }}", "granite"),
        ("{% if messages[1] %}{{ raise_exception('') }}{% endif %}[TOOL_CALLS]", "mistral_list"),
        ("<tool_call> {% broken", "qwen"),
        (_DROPS, None),
        (_DROPS + "<function=f>\n<parameter=p>v</parameter>", None),
        (_DROPS + "<arg_key>k</arg_key><arg_value>v</arg_value>", None),
    ],
)
def test_template_that_writes_no_calls_is_judged_by_its_markers(
    text: str, name: str | None
) -> None:
    assert name_of(text) == name


def test_template_is_rendered_once_for_all_that_load_it(monkeypatch: pytest.MonkeyPatch) -> None:
    text = QWEN + "{# once #}"
    first = find_formats(text).tools
    monkeypatch.setattr(
        "asyncgen.text.tool_calls.format_detection.written_calls", lambda _: pytest.fail()
    )
    assert find_formats(text).tools is first is not None


def test_templates_that_take_long_are_not_all_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may have a hundred, each of which takes a second or two."""
    asked: list[str] = []
    now = iter(range(99))

    def written(text: str) -> Iterator[str]:
        asked.append(text)
        return iter(())

    monkeypatch.setattr(format_detection, "written_calls", written)
    monkeypatch.setattr(time, "thread_time", lambda: 0.4 * next(now))
    templates = {f"t{number}": f"{{# {number} late #}}" for number in range(100)}
    declaration = {"start_anchor": "a", "fields": {"content": {}}}
    assert find_formats(templates, response_template=declaration).tools is None
    assert len(asked) == 2
