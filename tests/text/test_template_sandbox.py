"""A template that would run or grow without end is stopped, and says why; others do not notice."""

from __future__ import annotations

import pytest

from asyncgen.errors import ChatTemplateError
from asyncgen.text import chat_template
from asyncgen.text import template_budget as template_limits
from asyncgen.text.chat_template import render_chat
from tests.cases import for_each

MESSAGES = [{"role": "user", "content": "hello"}]

STEPS = {
    "nested loops": (
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
        "{% endfor %}{% endfor %}{% endfor %}"
    ),
    "nested loops whose condition is never true": (
        "{% for a in range(9999) %}{% for b in range(9999) if false %}{% endfor %}{% endfor %}"
    ),
    "a macro that calls itself twice": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "a recursive loop": (
        "{% for x in [[]] recursive %}{{ loop([[], []]) if loop.depth < 60 }}{% endfor %}"
    ),
    "calls of a filter": (
        "{% for a in range(9999) %}{{ range(9999)|map('upper')|join }}{% endfor %}"
    ),
    "a call block": (
        "{% macro f() %}{% for i in range(9999) %}{{ caller() }}{% endfor %}{% endmacro %}"
        "{% for i in range(9999) %}{% call f() %}{% endcall %}{% endfor %}"
    ),
}
GROWTH = {
    "much text in a loop": "{% for a in range(99999) %}" + "x" * 5000 + "{% endfor %}",
    "much text in a block": (
        "{% for a in range(9999) %}{% set x %}{% for b in range(99) %}"
        + "x" * 5000
        + "{% endfor %}{% endset %}{% endfor %}"
    ),
    "doubling by ~": (
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{%endfor%}"
    ),
    "doubling by +": (
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{%endfor%}"
    ),
    "doubling by a block": (
        "{% set n = namespace(s='x') %}{% for i in range(60) %}"
        "{% set t %}{{ n.s }}{{ n.s }}{% endset %}{% set n.s = t %}{% endfor %}"
    ),
    "doubling by join": (
        "{% set n = namespace(s='x') %}{% for i in range(60) %}"
        "{% set n.s = [n.s, n.s]|join %}{% endfor %}"
    ),
    "doubling by replace": (
        "{% set n = namespace(s='x') %}{% for i in range(60) %}"
        "{% set n.s = n.s.replace('x', 'xx') %}{% endfor %}"
    ),
    "lists in lists": (
        "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}"
        "{% endfor %}{{ n.s }}"
    ),
    "dictionaries in dictionaries": (
        "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = {'a': n.s, 'b': n.s} %}"
        "{% endfor %}{{ n.s|tojson }}"
    ),
    "lists by dict()": (
        "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = dict(a=n.s, b=n.s) %}"
        "{% endfor %}{{ n.s|string }}"
    ),
    "a product": "{{ 'x' * 10**9 }}",
    "a product the other way": "{% set n = 10**9 %}{{ n * 'x' }}",
    "a product of lists": "{% set n = [0] * 10**9 %}",
    "a product of a product": "{% set n = [[0] * 10000] * 10000 %}{{ n }}",
    "a power": "{{ 10 ** (10**9) }}",
    "a power by squaring": (
        "{% set n = namespace(s=3) %}{% for i in range(60) %}{% set n.s = n.s * n.s %}{% endfor %}"
    ),
    "a width": "{{ '%999999999d' % 1 }}",
    "a width that is a value": "{{ '%*d' % (10**9, 1) }}",
    "a precision": "{{ '%.999999999f' % 1.0 }}",
    "the filter format": "{{ '%999999999d'|format(1) }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format with a width that is a value": "{{ '{:>{w}}'.format(1, w=10**9) }}",
    "format reached by attr": "{{ ('{:>999999999}'|attr('format'))(1) }}",
    "strftime": "{{ strftime_now('%999999999d') }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "rjust": "{{ 'x'.rjust(10**9) }}",
    "center": "{{ 'x'.center(10**9) }}",
    "the filter center": "{{ 'x'|center(10**9) }}",
    "the filter center by map": "{{ ['x']|map('center', 10**9)|list }}",
    "zfill": "{{ 'x'.zfill(10**9) }}",
    "join": "{{ ('x' * 9999).join(range(9999)|map('string')|list) }}",
    "the filter join": "{{ range(9999)|join('x' * 9999) }}",
    "replace": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "the filter join of what has no length": "{{ range(9999)|map('string')|join('x' * 9999) }}",
    "the filter replace": "{{ ('x' * 99999)|replace('', 'y' * 99999) }}",
    "indent": "{{ ('\n' * 99999)|indent(99999, blank=true) }}",
    "indent of json": "{{ messages|tojson(indent=10**9) }}",
    "wordwrap": "{{ ('x ' * 99999)|wordwrap(1, wrapstring='y' * 99999) }}",
    "batch": "{{ [1]|batch(10**9, 0)|list }}",
    "slice": "{{ [1]|slice(10**9)|list }}",
    "a sum of lists": "{{ ([[1]] * 99999)|sum(start=[]) }}",
    "round": "{{ 1.5|round(10**9, 'floor') }}",
}


@pytest.mark.parametrize("name", STEPS)
def test_too_many_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MOST_STEPS", 20_000)
    with pytest.raises(ChatTemplateError, match="sandbox stopped.*more than 20000 steps"):
        render_chat(STEPS[name], MESSAGES)


@for_each("name", GROWTH)
def test_too_much_text(name: str) -> None:
    with pytest.raises(ChatTemplateError, match="sandbox stopped.*(characters|bits)"):
        render_chat(GROWTH[name], MESSAGES)


def test_empty_containers_count_towards_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is kept until the end, to be weighed once."""
    monkeypatch.setattr(template_limits, "MOST_CHARACTERS", 100_000)
    template = "{% for a in range(999) %}{% set x = [[], {}, (), [], {}, (), [], {}] %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match="sandbox stopped.*more than [0-9]* characters"):
        render_chat(template, MESSAGES)


def test_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MOST_SECONDS", -1)
    with pytest.raises(ChatTemplateError, match="sandbox stopped.*more than -1 s"):
        render_chat(STEPS["nested loops"], MESSAGES)


@for_each(
    "name, text",
    [
        ("{{ [1]|tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ '%5d|%s' % (7, 'x') }}", "    7|x"),
        ("{{ '%s'|format('x') }}{{ '{:>4}'.format('x') }}", "x   x"),
        ("{{ 'x' ~ 1 ~ none ~ [1] }}", "x1None[1]"),
        ("{{ 'a b'.replace(' ', '-') }}{{ ['a', 'b']|join(', ') }}", "a-ba, b"),
        ("{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{{ loop.last }}{% endfor %}", "x1True"),
        ("{% for x in [1, 2, 3] if x > 1 %}{{ loop.index }}{{ x }}{% endfor %}", "1223"),
        ("{% for x in [] %}{% else %}none{% endfor %}", "none"),
        ("{% set a, b = (1, 2) %}{{ a }}{{ b }}", "12"),
        ("{{ 2 * 3 }}{{ 2 ** 10 }}{{ 'ab' * 2 }}{{ [1] + [2] }}", "61024abab[1, 2]"),
        ("{% macro f(x, y=[1]) %}{{ x }}{{ y[0] }}{% endmacro %}{{ f('a') }}", "a1"),
        ("{{ 'x' in ('x', 'y') }}{{ namespace(a=1).a }}{{ range(3)|list }}", "True1[0, 1, 2]"),
        ("{% set n = namespace(x=[]) %}{% set n.x = n.x + [1] %}{{ n.x|length }}", "1"),
    ],
)
def test_usual_template_constructs_still_render(name: str, text: str) -> None:
    assert render_chat(name, MESSAGES) == text


def test_a_long_conversation_stays_far_from_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content|trim }}"
        "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c|tojson }}{% endfor %}{% endif %}"
        "{{ '<|im_end|>\n' }}{% endfor %}"
    )
    monkeypatch.setattr(template_limits, "MOST_STEPS", 10_000)
    text = render_chat(template, [{"role": "user", "content": "x" * 5000}] * 1000)
    assert len(text) > 5_000_000


def test_each_rendering_has_a_separate_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MOST_STEPS", 1000)
    for _ in range(3):
        assert not render_chat("{% for i in range(900) %}{% endfor %}", MESSAGES)


def test_a_long_conversation_may_be_cut_and_joined() -> None:
    """As much is made of it as the templates of reasoning models make."""
    template = (
        "{% for m in messages %}{% set c = m.content.split('<t>')[-1].lstrip().rstrip() %}"
        "{{ '<' + m.role + '>' + c.strip() + '</' + m.role + '>' }}{% endfor %}"
    )
    text = "x" * 8_000_000
    assert text in render_chat(template, [{"role": "user", "content": text}])


def test_a_refused_template_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that ask for it again and again would hold up the streams beside them."""
    parsed: list[str] = []

    def check(text: str) -> None:
        parsed.append(text)

    monkeypatch.setattr(chat_template, "_check_source", check)
    refused = "{% include 'a' %}" * 1999
    for _ in range(3):
        with pytest.raises(ChatTemplateError, match="more than the 12000 parts of a template"):
            render_chat(refused, MESSAGES)
    assert parsed == [refused]
