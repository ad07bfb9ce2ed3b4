"""Render random calls of all that a chat template may call, on random values.

``python -m tests.text.random_calls SEED COUNT`` ends with an error when a template takes too long
or too much memory, or renders something else than jinja does.
"""

from __future__ import annotations

import faulthandler
import re
import resource
import sys
import time
from random import Random

from asyncgen.errors import ChatTemplateError
from asyncgen.text.chat_template import render_chat
from asyncgen.text.template_table import FILTERS, FUNCTIONS, METHODS, TESTS

MESSAGES = [{"role": "user", "content": "hello"}]
MEMORY = 3 * 2**30
SECONDS = 3.0
HANGS = 30

START = (
    "{% macro long" + "g" * 999 + "(a) %}{{ a }}{% endmacro %}"
    "{% set big = 'x' * 99999 %}{% set many = [''] * 99999 %}{% set pair = ('a', 1) %}"
    "{% set n = namespace(t=('a',), d=('b',), g=['c', 'd']) %}"
    "{% for i in range(30) %}{% set n.t = (n.t, n.t) %}{% endfor %}"
    "{% for i in range(300) %}{% set n.d = [n.d] %}{% endfor %}"
)
ATOMS = (
    "'' 'a' 'é' 'a,b' '%s' '%5d' '{}' '{:>9}' '\\n' 0 1 -1 7 2.5 1e300 true none missing big many"
    " pair n n.t n.d n.g messages messages[0] messages[0].content range(9) range(99999) dict"
    f" 10**18 (2**61-1) 2**4000 {'long' + 'g' * 999} ''|e big|e [] {{}} loop"
).split(" ")
METHOD_NAMES = sorted({name for methods in METHODS.values() for name in methods})
OPERATORS = "+ - * / // % ** ~ == != < <= > >= in and or".split(" ")
NAMED = "attribute= start= indent= width= default= reverse= case_sensitive= a= fill_with=".split()


def value(random: Random, depth: int = 3) -> str:
    """Write an expression."""
    kind = random.randrange(12) if depth else 0
    inner = [value(random, depth - 1) for _ in range(3)] if kind > 2 else []
    if kind <= 2:
        return random.choice(ATOMS)
    if kind == 3:
        return f"[{', '.join(inner[: random.randrange(4)])}]"
    if kind == 4:
        return f"({inner[0]}, {inner[1]})"
    if kind == 5:
        return f"{{'a': {inner[0]}, {inner[1]}: {inner[2]}}}"
    if kind == 6:
        return (
            f"({{'a': {inner[0]}, 'b': {inner[1]}}}.{random.choice(['items', 'values', 'keys'])}())"
        )
    if kind == 7:
        return f"(({inner[0]})|{random.choice(sorted(FILTERS))}{arguments(random, inner[1:])})"
    if kind == 8:
        return f"(({inner[0]}).{random.choice(METHOD_NAMES)}{arguments(random, inner[1:]) or '()'})"
    if kind == 9:
        return f"({inner[0]} {random.choice(OPERATORS)} {inner[1]})"
    if kind == 10:
        name = random.choice([one for one in sorted(TESTS) if one.isalpha()])
        return f"(({inner[0]}) is {name}{arguments(random, inner[1:])})"
    if random.random() < 0.5:
        return f"({inner[0]})[{inner[1]}:{inner[2]}]"
    name = random.choice([one for one in sorted(FUNCTIONS) if one != "raise_exception"])
    return f"{name}{arguments(random, inner[1:]) or '()'}"


def arguments(random: Random, values: list[str]) -> str:
    """Write some arguments, of which the last may have a name."""
    given = values[: random.randrange(3)]
    if given and random.random() < 0.2:
        given[-1] = random.choice(NAMED) + given[-1]
    if given and random.random() < 0.1 and "=" not in given[-1]:
        given[-1] = "*" + given[-1]
    return f"({', '.join(given)})" if given else ""


def template(random: Random) -> str:
    """Write a template of one call."""
    written = value(random, 4)
    ways = ("{{ VALUE }}", "{% for x in VALUE %}{{ x }}{% endfor %}", "{{ (VALUE)|length }}")
    body = random.choice(ways).replace("VALUE", written)
    return f"{START}{{% for i in [1, 2] %}}{body}{{% endfor %}}"


def main(seed: int, count: int) -> None:
    """Render templates; print each that is wrong."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    random = Random(seed)
    wrong = rendered = 0
    for _ in range(count):
        written = template(random)
        print("begin", written[len(START) :], flush=True)  # noqa: T201
        faulthandler.dump_traceback_later(HANGS, exit=True)
        begun = time.thread_time()
        try:
            text = render_chat(written, MESSAGES)
        except ChatTemplateError as error:
            text = ""
            if "MemoryError" in str(error) or "RecursionError" in str(error):
                wrong += 1
                print("WRONG", error)  # noqa: T201
        else:
            rendered += 1
            if re.search(r"\bn\b(?!\.)|namespace|loop|strftime", written[len(START) :]):
                continue  # written short here, or by the time
            plain = render_chat(written, MESSAGES, trust_template=True)
            known = re.compile(r" at 0x[0-9a-f]+|<Namespace[^>]*>+|<bound.*>|<function.*>|Counted")
            if not known.search(text) and not re.search("generator|iterator", plain):
                if text != plain:
                    wrong += 1
                    print("WRONG", repr(text[:300]), repr(plain[:300]))  # noqa: T201
        if time.thread_time() - begun > SECONDS:
            wrong += 1
            print("WRONG: it took", time.thread_time() - begun)  # noqa: T201
    print(f"{rendered} of {count} rendered")  # noqa: T201
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
