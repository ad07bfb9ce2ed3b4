"""Contents that are lists of parts become what the template reads, or are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.text.chat_content import only_texts
from asyncgen.text.chat_template import render_chat
from tests.cases import for_each

PARTS: list[dict[str, Any]] = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": PARTS}]

CONCATENATING = {
    "plus": "{% for m in messages %}{{ '<' + m['content'] + '>' }}{% endfor %}",
    "tilde": "{% for m in messages %}{{ '<' ~ m.content ~ '>' }}{% endfor %}",
    "lines": "{% for m in messages %}<{% for line in m.content.split('!') %}"
    "{{ line }}{% endfor %}>{% endfor %}",
    "method": "{% set c = messages[0].content %}{{ '<' + c.strip() + '>' }}",
    "calls": "{% for m in messages %}{% for call in m.tool_calls or [] %}{{ call }}{% endfor %}"
    "{{ '<' + m.content | trim + '>' }}{% endfor %}",
}
GOING_THROUGH = {
    "loop": "{% for m in messages %}{% for part in m['content'] %}<{{ part.text }}>"
    "{% endfor %}{% endfor %}",
    "either": "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content if part.type == 'text' %}<{{ part['text'] }}>"
    "{% endfor %}{% endif %}{% endfor %}",
    "variable": "{% for m in messages %}{% set said = m.content %}{% for part in said %}"
    "<{{ part.text }}>{% endfor %}{% endfor %}",
    "slice": "{% for m in messages %}{% for part in m.content[0:] | list %}<{{ part.text }}>"
    "{% endfor %}{% endfor %}",
    "macro": "{% macro show(said) %}{% for part in said %}<{{ part.text }}>{% endfor %}"
    "{% endmacro %}{% for m in messages %}{{ show(m.content) }}{% endfor %}",
    "choice": "{% set c = messages[0].content if messages else [] %}{% for part in c %}"
    "<{{ part.text }}>{% endfor %}",
    "filter": "{% for m in messages %}<{{ m.content | selectattr('type', 'equalto', 'text') |"
    " map(attribute='text') | join('><') }}>{% endfor %}",
}


@for_each("template", CONCATENATING.values())
def test_a_template_of_texts_gets_a_part_a_line(template: str) -> None:
    assert render_chat(template, MESSAGES) == "<one\ntwo>"


@for_each("template", GOING_THROUGH.values())
def test_a_template_that_goes_through_parts_gets_them(template: str) -> None:
    assert render_chat(template, MESSAGES) == "<one><two>"


def test_texts_are_what_they_were() -> None:
    said: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "calls": 1},
    ]
    assert only_texts(said) == said
    assert only_texts([{"role": "user", "content": ["Hi"]}]) == [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    ]
    assert render_chat(CONCATENATING["plus"], [{"role": "user", "content": []}]) == "<>"


def test_a_joined_content_is_continued() -> None:
    last: list[dict[str, Any]] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": PARTS},
    ]
    text = render_chat(CONCATENATING["plus"], last, continue_final_message=True)
    assert text == "<Hi><one\ntwo"


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}}, "type", "image_url"),
        ({"text": "Hi"}, "type", None),
        ({"type": "text", "text": 3}, "text", 3),
        ({"type": "text"}, "text", None),
    ],
)
def test_other_parts_are_refused_by_name(part: dict[str, Any], name: str, value: object) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Hi"},
        {"role": "user", "content": [*PARTS, part]},
    ]
    with pytest.raises(InvalidRequestError) as caught:
        only_texts(messages)
    assert caught.value.parameter == f"messages[1].content[2].{name}"
    assert caught.value.value == value
