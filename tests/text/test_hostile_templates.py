"""Random hostile templates: none crashes, holds the interpreter or fills the memory.

Large, deep, shared and empty values meet every filter, test, function, method and operator of the
tables. Each template is rendered in a child process: a crash or a hang names the template.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from asyncgen.text.template_table import FILTERS, FUNCTIONS, METHODS, TESTS

MESSAGES = [{"role": "user", "content": "hello"}]
MOST_HELD = 0.25  # seconds of the processor in which no other thread runs
MOST_BYTES = 400 * 2**20
ADDRESSES = 3 * 2**30

START = (
    "{% set n = namespace(d=('a',), t=('a',), u=('a',), e=[1], f={}) %}"
    "{% for i in range(DEEP) %}{% set n.d = " + "(" * 10 + "n.d" + ",)" * 10 + " %}{% endfor %}"
    "{% for i in range(30) %}{% set n.t = (n.t, n.t) %}{% set n.u = (n.u, n.u) %}"
    "{% set n.e = [n.e, n.e] %}{% set n.f = {'a': n.f, 'b': n.f} %}{% endfor %}"
    "{% macro m(a=1) %}{{ a }}{% endmacro %}"
)
VALUES = """
''
'x'
'a b,c d'
'%s'
'{}'
'{0}%r'
'%0000000999d'
'%900d'
'{:>900}'
'x' * SIZE
'é' * SIZE
'a b\\n' * SIZE
'<&' * SIZE
'%s' * SIZE
'{}' * SIZE
'9' * SIZE
('<' * SIZE)|e
('é' * SIZE)|safe
0
1
-7
SIZE
10 ** 18
2 ** 60000
2305843009213693951
1.5
1e308
none
true
missing
[]
()
{}
[''] * SIZE
[none] * SIZE
[[]] * SIZE
[{}] * SIZE
[0] * SIZE
[1.5] * SIZE
(1, 'x') * SIZE
['x' * 999] * SIZE
[['a', 1], ['b', 2]]
[[''] * SIZE] * 9
[{'a': 1, 'b': 'x'}] * SIZE
range(SIZE)
range(99999)
range(0, 7 * 10 ** 18, 10 ** 14)
messages
messages[0]
{'a': 'x' * SIZE}
{'a': n.t}
{'a': n.d}
{1: 2, none: 3}
{'a': n.t}.items()
{'a': n.t}.values()
{'a': n.d}.items()
{'a': 1}.keys()
n
n.d
n.t
n.u
n.e
n.f
[n.d]
[n.t, n.u]
(n.t, n.d)
m
loop
range
dict
joiner(',')
'x'.upper
(['x'] * SIZE)|map('upper')
([n.t] * SIZE)|select
range(SIZE)|map('string')|list
range(SIZE)|batch(3)|list
range(SIZE)|map('string')|join
"""
HOT = """
{'a': n.t}.items()
{'a': n.u}.items()
{'a': n.t}.values()
{'a': n.d}.items()
{'a': n.d}.values()
[{'a': n.t}.values()]
[n.t]
(n.t, n.u)
([n.t] * 9)|select
([n.d] * 9)|select
[[''] * SIZE] * 500
[[none] * SIZE] * 500
[[[]] * SIZE] * 500
[m] * SIZE
'%00000000WIDEd'
'%0WIDEs'
'%-WIDE.WIDEf'
'{:0000000WIDEd}'
'{:>WIDE}'
'{:{}}'
'{0:{1}}'
'{0[0]:{0[1]}}'
'{a:{b}}'
'%*d'
'%(a)WIDEs'
'%r' * SIZE
'WIDE'
WIDE
(1, WIDE)
[1, WIDE]
{'a': 1, 'b': WIDE}
-(2 ** 60000)
range(0, 2 ** 60000, 2 ** 59990)
"""
SMALL = "'x' 'a' '' ',' 0 1 2 -1 7 999 none true 'upper' 'eq' 'a.b.c' '0' ' '".split(" ")
NAMES = (
    "attribute start indent separators default sep width case_sensitive by sort_keys length a"
    " fill_with blank first linecount reverse".split()
)
OPERATORS = "+ - * / // % ** ~ == != < <= > >= in".split() + ["not in", "and", "or"]
SHAPES = """
{{ EXPR }}
{{ (EXPR)|string|length }}
{% set r = EXPR %}{{ r }}
{% for x in EXPR %}{{ x }}{% endfor %}
{% for x in range(99) %}{% set r = EXPR %}{% endfor %}
{% for x in range(3) %}{{ loop.changed(EXPR) }}{% endfor %}
{% set s = namespace(l=[]) %}{% for x in range(500) %}{% set s.l = s.l + [EXPR] %}{% endfor %}
{% if EXPR %}a{% endif %}
{{ [EXPR, EXPR] == [EXPR, EXPR] }}
{{ m(EXPR) }}{{ m(*EXPR) }}
{{ {'a': EXPR} }}{{ {EXPR: 1} }}
{{ (EXPR)[1:] }}{{ (EXPR)[::-1] }}{{ messages[0][EXPR] }}
{{ raise_exception(EXPR) }}
{{ (EXPR)|tojson }}
{% for x in range(99) %}{{ EXPR }}{% endfor %}
{% filter FILTER %}{{ EXPR }}{% endfilter %}
"""
CHILD = """
import json, resource, sys, threading, time
resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
from asyncgen.errors import ChatTemplateError
from asyncgen.text.chat_template import render_chat
held, done = [0.0], threading.Event()
def tick():
    spent, now = time.process_time(), time.monotonic()
    while not done.wait(0.002):
        spent_now, later = time.process_time(), time.monotonic()
        held[0] = max(held[0], min(spent_now - spent, later - now))
        spent, now = spent_now, later
threading.Thread(target=tick, daemon=True).start()
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024
render_chat("{{ 1|tojson }}", MESSAGES)
base = peak()
for line in sys.stdin:
    template = json.loads(line)
    held[0] = 0.0
    begun = time.thread_time()
    try:
        said = str(len(render_chat(template, MESSAGES)))
    except ChatTemplateError as error:
        said = "refused " + str(error)[:200]
    except BaseException as error:
        said = "RAISED " + type(error).__name__ + str(error)[:200]
    took = time.thread_time() - begun
    time.sleep(0.005)
    print(json.dumps([said, held[0], took, peak() - base]), flush=True)
    open("/proc/self/clear_refs", "w").write("5")
""".replace("ADDRESSES", str(ADDRESSES)).replace("MESSAGES", repr(MESSAGES))


def template_of(dice: random.Random) -> str:
    """A template of one random expression or a few."""
    methods = [name for names in METHODS.values() for name in names]

    def value(depth: int = 0) -> str:
        size = dice.choice(["3", "100", "3000", "40000", "1000000", "4000000"])
        wide = dice.choice(["9", "999", "1000", "2000000000"])
        kinds = HOT if dice.random() < 0.5 else VALUES
        plain = dice.choice(kinds.strip().split("\n")).replace("SIZE", size).replace("WIDE", wide)
        return f"({expression(depth + 1)})" if depth < 2 and dice.random() < 0.3 else f"({plain})"

    def arguments(depth: int) -> str:
        given = [
            dice.choice(SMALL) if dice.random() < 0.6 else value(depth)
            for _ in range(dice.choice([0, 0, 1, 1, 2, 3]))
        ]
        if dice.random() < 0.08:
            given.append(f"{dice.choice(NAMES)}={dice.choice(SMALL)}")
        if dice.random() < 0.03:
            given.append(f"{dice.choice(NAMES)}_={value(depth)}")
        return ", ".join(given)

    def expression(depth: int = 0) -> str:
        kind = dice.randrange(7)
        if kind < 2:
            return f"{value(depth)}|{dice.choice([*FILTERS])}({arguments(depth)})"
        if kind == 2:
            return f"{value(depth)} is {dice.choice(NAMED_TESTS)}({arguments(depth)})"
        if kind == 3:
            return f"{value(depth)}.{dice.choice(methods)}({arguments(depth)})"
        if kind == 4:
            return f"{dice.choice([*FUNCTIONS])}({arguments(depth)})"
        operator = dice.choice([*OPERATORS, "-", "==", "<", "%", "~", "in"])
        return f"{value(depth)} {operator} {value(depth)}"

    shape = dice.choice(SHAPES.strip().split("\n"))
    while "EXPR" in shape:
        shape = shape.replace("EXPR", dice.choice([expression, value])(), 1)
    shape = shape.replace("FILTER", dice.choice([*FILTERS]))
    start = START.replace("DEEP", dice.choice(["1", "9", "2000"]))
    return start + "{% for once in [1] %}" + shape + "{% endfor %}"


NAMED_TESTS = [name for name in TESTS if name.isalpha()]


def faults(templates: list[str], seconds: float) -> list[str]:
    """Render templates in a process; say what is wrong with each that does harm."""
    given = "".join(json.dumps(template) + "\n" for template in templates)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = child.communicate(given, seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        output, errors = child.communicate()
    found = []
    answers = output.splitlines()
    for template, answer in zip(templates, answers, strict=False):
        said, held, took, grown = json.loads(answer)
        if said.startswith("RAISED") or held > MOST_HELD or took > 2 or grown > MOST_BYTES:
            figures = f"held {held:.2f} s, took {took:.2f} s, {grown >> 20} MiB"
            found.append(f"{figures}, {said}: {template.replace(START[:60], '')}")
    if len(answers) < len(templates):
        found.append(f"died with {child.returncode}: {errors[-300:]} {templates[len(answers)]}")
    return found


def test_some_random_templates_do_no_harm() -> None:
    dice = random.Random(41)
    assert faults([template_of(dice) for _ in range(12)], 15) == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_random_templates_do_no_harm() -> None:
    dice = random.Random(7)
    for _ in range(200):
        assert faults([template_of(dice) for _ in range(100)], 600) == []
