"""Random chat templates: rendered as transformers 5.23 renders them, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncgen.errors import ChatTemplateError
from asyncgen.text.chat_template import render_chat
from tests.cases import for_each

transformers = pytest.importorskip("transformers", "5.23")
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "enable_thinking": True}

texts = st.sampled_from(
    "message['content'] message.content message.role message['role'] bos_token eos_token text"
    " 'a\\nb ' messages[0].content messages[-1]['role'] missing message.name".split(" ")
)
filters = st.sampled_from(
    "trim upper lower title capitalize length tojson string first last list|reverse|join"
    " default('none') replace('a','b') indent(2) tojson(indent=2) tojson(ensure_ascii=False)"
    " e truncate(4) wordcount list|join('-') int".split(" ")
)
methods = st.sampled_from(
    "strip() lstrip('a') rstrip('\\n') split('a')[0] split('a')[-1] upper() startswith('a')"
    " replace('a','') find('a') title() splitlines()|join('|') [1:] [::-1] [0] get('x') items()"
    " nothing()".split(" ")
)
numbers = st.sampled_from(["loop.index0", "loop.index", "loop.length", "messages|length", "7"])
TESTS = """
loop.first
loop.last
add_generation_prompt
enable_thinking
missing
tools
'a' in message.content
message.role == 'user'
message['role'] != 'system'
message.content is string
message.content is none
missing is defined
message.tool_calls is defined
loop.index0 % 2 == 0
not loop.first
message.content is mapping
messages|length > 1
message.content[:1] == 'a'
loop.previtem is defined
"""
tests = st.sampled_from(TESTS.strip().split("\n"))


def _joined(value: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.tuples(value, methods)
    return st.one_of(
        value,
        st.tuples(value, filters).map("|".join),
        pairs.map(lambda pair: f"({pair[0]}){'' if pair[1][0] == '[' else '.'}{pair[1]}"),
        st.tuples(value, value).map(" ~ ".join),
        st.tuples(value, value).map(" + ".join),
        st.tuples(value, tests, value).map(lambda of: f"({of[0]} if {of[1]} else {of[2]})"),
    )


values = st.recursive(st.one_of(texts, numbers), _joined, max_leaves=3)
opened = st.sampled_from([("{{ ", " }}"), ("{{- ", " }}"), ("{{ ", " -}}"), ("{{- ", " -}}")])
printed = st.tuples(opened, values).map(lambda pair: f"{pair[0][0]}{pair[1]}{pair[0][1]}")
plain = st.sampled_from(["x", " ", "\n", "  \n", "<|im_start|>", "\u00e9\U0001f98a", "#"])
OTHERS = """
{% set text = 'set' %}
{%- set ns = namespace(n=0) -%}
{% set ns.n = 1 %}
{{ ns.n }}
{# note #}
{% break %}
{% continue %}
{{ raise_exception('refused') }}
{{ strftime_now('%Y')|length }}
{{ range(3)|list }}
{{ dict(a=1)|tojson }}
{% generation %}g{% endgeneration %}
{{ macro(1) }}
{% include 'x' %}
{{ tools|tojson }}
{{ messages|map(attribute='role')|join(',') }}
{{ messages|selectattr('role', 'equalto', 'user')|list|length }}
{{ [1, 2]|sum }}
{% for k, v in message|items %}{{ k }}={{ v }}{% endfor %}
"""
others = st.sampled_from(OTHERS.strip().split("\n"))


BLOCKS = """
{% if @test %}@body{% else %}@other{% endif %}
{%- if @test -%}@body{%- elif not @test %}@other{%- endif %}
{% for message in messages %}@body{% endfor %}
{%- for message in messages[1:] %}@body{%- else %}none{%- endfor -%}
{% for message in messages if message.role != 'system' %}@body{% endfor %}
{% macro macro(text) %}@body{% endmacro %}{{ macro('m') }}
{% set text %}@body{% endset %}{{ text|trim }}
{% filter upper %}@body{% endfilter %}
"""


def _filled(pieces: tuple[str, str, list[str], list[str]]) -> str:
    block, test, body, other = pieces
    block = block.replace("@test", test).replace("@other", "".join(other))
    return block.replace("@body", "".join(body))


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    bodies = st.lists(inner, min_size=1, max_size=3)
    blocks = st.sampled_from(BLOCKS.strip().split("\n"))
    return st.tuples(blocks, tests, bodies, bodies).map(_filled)


START, EACH, END = "{% set text = 'T' %}", "{% for message in messages %}", "{% endfor %}"
parts = st.recursive(st.one_of(printed, printed, plain, plain, others), _nested, max_leaves=6)
bodies = st.lists(parts, min_size=1, max_size=4).map("".join)
templates = bodies | bodies.map(lambda body: f"{START}{EACH}{body}{END}")
contents = st.sampled_from(["a", " banana\n", "", "caf\u00e9 \U0001f98a", "<b>&'\"", "x" * 30])
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": contents}
    ),
    min_size=1,
    max_size=4,
)
tools = st.sampled_from(
    [None, [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]]
)


def compare(template: str, chat: list[Any], called: Any, opens: bool) -> None:
    expected = None
    try:
        (expected,), _ = transformers.utils.chat_template_utils.render_jinja_template(
            conversations=[chat],
            tools=called,
            chat_template=template,
            add_generation_prompt=opens,
            **VARIABLES,
        )
    except Exception:  # what they refuse is ours to render or to refuse
        pass
    try:
        found = render_chat(
            template, chat, tools=called, add_generation_prompt=opens, variables=VARIABLES
        )
    except ChatTemplateError:
        assert expected is None
        return
    assert expected is None or found == expected


@for_each(
    "template",
    [
        "{% break %}",
        "{% if true %}{% continue %}{% endif %}",
        "{% macro f() %}{% break %}{% endmacro %}",
        "{% set x %}{% continue %}{% endset %}{{ x }}",
    ],
)
def test_template_that_python_cannot_compile_is_refused_by_name(template: str) -> None:
    with pytest.raises(ChatTemplateError, match="cannot be compiled|not valid"):
        render_chat(template, [{"role": "user", "content": "a"}])


@given(template=templates, chat=messages, called=tools, opens=st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_template_renders_as_in_the_reference(
    template: str, chat: list[Any], called: Any, opens: bool
) -> None:
    compare(template, chat, called, opens)


@pytest.mark.gate
@given(template=templates, chat=messages, called=tools, opens=st.booleans())
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_random_templates_render_as_in_the_reference(
    template: str, chat: list[Any], called: Any, opens: bool
) -> None:
    compare(template, chat, called, opens)
