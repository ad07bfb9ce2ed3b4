"""Every value that a chat template may hold has a weight, however nested, shared or hidden."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import OrderedDict, UserDict
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from asyncgen.errors import ChatTemplateError
from asyncgen.text.chat_template import render_chat
from asyncgen.text.message_forms import Null
from asyncgen.text.template_budget import Budget
from asyncgen.text.template_weights import EACH, MOST_DEPTH
from tests.cases import for_each

MESSAGES = [{"role": "user", "content": "hello"}]
SHARED = (
    "{% set n = namespace(t=('a',), u=('a',)) %}{% for i in range(40) %}"
    "{% set n.t = (n.t, n.t) %}{% set n.u = (n.u, n.u) %}{% endfor %}"
)
DEEP = (
    "{% set n = namespace(t=('a',)) %}{% for i in range(200) %}"
    "{% set n.t = " + "(" * 10 + "n.t" + ",)" * 10 + " %}{% endfor %}"
)
NAME = "a" * 40000
INTEGERS = "{% set s %}{% for i in range(900) %}{{ i * (2 ** 61 - 1) }} {% endfor %}{% endset %}"
LARGE = "characters"
DEEPLY = "nested more than 100 deep"
WIDTH = "width of more than 999 characters"
FIELD = "it formats with the field"
CALLED = "the template calls `{}`, which templates may not call"

REFUSED: dict[str, tuple[str, list[str]]] = {
    "a deep value that is hashed": (
        DEEPLY,
        [
            DEEP + "{{ {}[n.t] }}",
            DEEP + "{{ [n.t]|unique|list|length }}",
            DEEP + "{{ n.t in {} }}",
            DEEP + "{{ {}.get(n.t) }}",
            DEEP + "{{ [n.t]|groupby(0)|list|length }}",
        ],
    ),
    "a deep value that is compared": (
        DEEPLY,
        [
            DEEP + "{{ n.t == n.t[0] }}",
            DEEP + "{{ n.t in [[n.t]] }}",
            DEEP + "{{ [n.t].count(n.t[0]) }}",
            DEEP + "{{ {'a': n.t}.items() == {'a': n.t[0]}.items() }}",
        ],
    ),
    "a deep value that is written": (
        DEEPLY,
        [DEEP + "{{ n.t }}", DEEP + "{{ n.t|tojson }}", DEEP + "{{ {'a': n.t}.values() ~ '' }}"],
    ),
    "bounds that are hashed": (
        "cut out a part with a bound of the type `(tuple|str)`, which is no integer",
        [DEEP + "{{ {}[n.t:1] }}", DEEP + "{{ {}[:n.t] }}", "{{ 'abc'[1:'a'] }}"],
    ),
    "a set of views": (
        "computes with a `dict_",
        [
            SHARED + "{{ {'a': n.t}.items() - {'b': 1}.items() }}",
            "{{ {'a': 1}.keys() - {} }}",
            "{{ [1] - {'a': 1}.values() }}",
        ],
    ),
    "a view that is compared": (
        LARGE,
        [
            SHARED + "{{ {'a': n.t}.items() == {'a': n.u}.items() }}",
            SHARED + "{{ [{'a': n.t}.items(), {'a': n.u}.items()]|sort|length }}",
            SHARED + "{{ {'a': n.t}.items() in [{'a': n.u}.items()] }}",
            "{% for i in [1, 2] %}" + SHARED + "{{ loop.changed({'a': n.t}.items()) }}{% endfor %}",
        ],
    ),
    "a view that is written": (
        LARGE,
        [
            SHARED + "{{ {'a': n.t}.items() }}",
            SHARED + "{{ {'a': n.t}.values() ~ '' }}",
            SHARED + "{{ [{'a': n.t}.values()]|join }}",
            SHARED + "{{ '%s'|format({'a': n.t}.values()) }}",
            SHARED + "{{ '{}'.format({'a': n.t}.values()) }}",
            SHARED + "{{ '%s' % {'a': n.t}.values() }}",
            SHARED + "{{ raise_exception({'a': n.t}.values()) }}",
            SHARED + "{{ {'a': {'a': n.t}.items()}.values()|string }}",
        ],
    ),
    "an argument that is hashed, compared or written": (
        LARGE,
        [
            SHARED + "{{ ('ab' * 9)|join(n.t) }}",
            SHARED + "{{ [1]|join(d=n.t) }}",
            SHARED + "{{ 1.5|round(1, n.t) }}",
            SHARED + "{{ [1]|map(n.t)|list }}",
            SHARED + "{{ [1]|select(n.t)|list }}",
            SHARED + "{{ [1]|map('round', 1, n.t)|list }}",
            SHARED + "{{ [{}]|selectattr('a', n.t)|list }}",
            SHARED + "{{ [[1]]|map('join', n.t)|list }}",
        ],
    ),
    "a separator that is no text": (
        LARGE,
        [
            "{{ range(99999)|join(range(9999)|list) }}",
            "{{ ([''] * 99999)|join({'a': 'x' * 9999}) }}",
            "{{ ('x' * 99999)|join(d=['x' * 9999]) }}",
        ],
    ),
    "an attribute that is large": (
        "read more than",
        [
            SHARED + "{{ 'a'|attr({'a': n.t}.values()) }}",
            SHARED + "{{ 'a'|attr(n.t) }}",
        ],
    ),
    "an attribute that is a view": (
        "name is no text",
        [
            "{{ 'a'|attr({'a': 'b'}.values()) }}",
            "{{ 'a'|attr(['b']) }}",
            "{{ ['a']|map('attr', 1)|list }}",
        ],
    ),
    "filters of filters": (
        "filters of more than 100 filters",
        [
            "{% set n = namespace(g=['a']) %}{% for i in range(90000) %}{% set n.g = n.g|FILTER %}"
            "{% endfor %}".replace("FILTER", each)
            for each in ("map('upper')", "select", "reject('none')", "selectattr('x')")
        ],
    ),
    "empty texts": (
        LARGE,
        [
            "{{ ([''] * 5000000)|length }}",
            "{% set l = [''] * 1000000 %}{{ [l] * 500 }}",
            "{% set l = [''] * 1000000 %}{% set m = [''] * 1000000 %}{{ [l]*2000 == [m]*2000 }}",
            "{% set l = [''] * 100000 %}{{ ([l] * 2000)|sum(start=[])|length }}",
        ],
    ),
    "widths behind zeros": (
        WIDTH,
        [
            "{{ '%0000000000002000000000d'|format(1) }}",
            "{{ '%0000000000002000000000d' % 1 }}",
            "{{ '{:0000000000002000000000d}'.format(1) }}",
            "{{ '%.0000000000002000000000f' % 1.0 }}",
            "{{ '%(a)0000000000002000000000d' % {'a': 1} }}",
        ],
    ),
    "widths that are values": (
        f"{FIELD}|{WIDTH}",
        [
            "{{ '{:{}}'.format('a', '2000000000') }}",
            "{{ '{:>{w}}'.format(1, w=10**9) }}",
            "{{ '{0[0]:{0[1]}}'.format([1, 2000000000]) }}",
            "{{ '{0.a}'.format(1) }}",
            "{{ '%*d' % (10**9, 1) }}",
            "{{ '%.*f'|format(10**9, 1.0) }}",
        ],
    ),
    "a method with a table of letters": (
        CALLED.format("translate"),
        [
            "{{ ('x' * 50000).translate(['y' * 40000]) }}",
            "{{ ('x' * 50000).translate({120: 'y' * 40000}) }}",
            "{{ (('x' * 50000)|e).translate(['y']) }}",
        ],
    ),
    "names of macros": (
        LARGE,
        [
            f"{{% macro {NAME}() %}}{{% endmacro %}}{{{{ ([{NAME}] * 50000){how} }}}}"
            for how in ("", "|join|length", "|string|length", " ~ ''")
        ],
    ),
    "integers that collide": (
        "keys are neither texts nor numbers of at most 61 bits|`fromkeys`",
        [
            INTEGERS + "{{ dict(s.split()|map('int')|batch(2)) }}",
            INTEGERS + "{{ dict.fromkeys(s.split()|map('int')) }}",
            INTEGERS + "{% for i in s.split()|map('int') %}{% set d = {i: 1, -i: 2} %}{% endfor %}",
            "{{ {1.5: 1} }}",
        ],
    ),
}


@for_each("name", REFUSED)
def test_what_cannot_be_told_is_refused(name: str) -> None:
    said, templates = REFUSED[name]
    for template in templates:
        begun = time.thread_time()
        with pytest.raises(ChatTemplateError, match=f"sandbox stopped.*({said})"):
            render_chat(template, MESSAGES)
        assert time.thread_time() - begun < 1, template[-80:]


ALLOWED = [
    ("{{ '{:>5}|{:<3}|{a!r}'.format(1, 'b', a='c') }}", "    1|b  |'c'"),
    ("{{ '%5d %s %-3s|%.2f %(a)s' % {'a': 1} if false }}{{ '%5d|%.2f' % (1, 2) }}", "    1|2.00"),
    ("{{ '%(a)03d' % {'a': 7} }}{{ '%s%%'|format([1]) }}", "007[1]%"),
    ("{{ {'a': 1}.items()|list }}{{ {'a': 1}.keys() }}", "[('a', 1)]dict_keys(['a'])"),
    ("{{ 'a' in {'a': 1}.keys() }}{{ {'a': [1]}.items() == {'a': [1]}.items() }}", "TrueTrue"),
    ("{{ {1: 'a', true: 'b', none: 'c'} }}{{ [1, 2, 3][:2] }}", "{1: 'b', None: 'c'}[1, 2]"),
    ("{{ [1, 2]|map('string')|map('int')|select('odd')|list }}", "[1]"),
    ("{{ -(3) }}{{ [[]] * 2 }}{{ (1, (2,)) == (1, (2,)) }}", "-3[[], []]True"),
]


@for_each(("template", "text"), ALLOWED)
def test_what_is_small_renders_alike(template: str, text: str) -> None:
    assert render_chat(template, MESSAGES) == text
    assert render_chat(template, MESSAGES, trust_template=True) == text


VALUES: list[Any] = [
    "",
    1,
    True,
    None,
    1.5,
    2j,
    Null(),
    datetime.now(UTC),
    range(3),
    [],
    (),
    {},
    OrderedDict(a=1),
    UserDict(a=1),
    {}.items(),
    iter([]),
    {1, 2},
    len,
    [].append,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_each_entry_of_a_container_weighs(value: Any) -> None:
    budget = Budget(10**6)
    for many in ([value] * 1000, (value,) * 1000, dict.fromkeys(range(1000), value)):
        assert budget.weigh(many) >= 1000 * (EACH + budget.weigh(value))


@for_each("value", [Decimal(1), object(), b"bytes", bytearray(b"x"), Budget])
def test_a_value_of_another_type_is_refused_by_name(value: Any) -> None:
    if value is Budget:
        value = Budget(1)
    for held in (value, [value], {"a": (value,)}, {"a": value}.values()):
        with pytest.raises(SecurityError, match=f"of the type `{type(value).__name__}`"):
            Budget(10**6).weigh(held)
    with pytest.raises(ChatTemplateError, match=f"of the type `{type(value).__name__}`"):
        render_chat("{{ x }}", MESSAGES, variables={"x": value})


def test_views_weigh_what_they_hold_and_sharing_counts_each_time() -> None:
    shared: Any = ("abc",)
    for _ in range(20):
        shared = (shared, shared)
    held = {"a": shared}
    for value in (shared, held, held.values(), held.items(), [held.values()]):
        assert Budget(10**6).weigh(value) > 3 * 2**20


def test_the_deepest_value_has_a_weight() -> None:
    value: Any = []
    for _ in range(MOST_DEPTH - 1):
        value = [value]
    assert Budget(10**6).depth(value) == MOST_DEPTH
    for deeper in ([value], (value,), {"a": value}, {"a": value}.values()):
        with pytest.raises(SecurityError, match=DEEPLY):
            Budget(10**6).weigh(deeper)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_random_calls_on_random_values_end_and_render_alike() -> None:
    """Each template that is not refused renders what jinja renders, within memory and time."""
    for seed in range(12):
        child = subprocess.run(
            [sys.executable, "-m", "tests.text.random_calls", str(seed), "300"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert child.returncode == 0, (seed, child.stdout[-3000:], child.stderr[-1000:])
