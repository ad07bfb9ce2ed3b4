"""No call of the grammar engine holds the interpreter for long: what would is refused by name."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch

from asyncgen.engine.requests.tool_call_output import _kept
from asyncgen.errors import InvalidRequestError
from asyncgen.structured.grammar_compiler import compile_grammar
from asyncgen.structured.lark_cost import LarkCost
from asyncgen.structured.output_format import OutputFormat, read_output_format
from asyncgen.structured.pattern_cost import MOST_OPTIONAL_PARTS, optional_parts
from tests.cases import for_each
from tests.doubles.models import byte_tokenizer
from tests.structured.attacks import ACCEPTED, BOUNDED, REFUSED, REFUSED_SLOWLY

EOS = 256
MOST_SECONDS = 0.15
_ALLOWED_SECONDS = 3 * MOST_SECONDS  # on a machine that is busy with other things


def compile_asked(asked: dict[str, Any]) -> Any:
    """The grammar of a request."""
    output_format = read_output_format(asked)
    assert output_format is not None
    return compile_grammar(output_format, byte_tokenizer(), 260)


def require_refusal(asked: dict[str, Any]) -> None:
    """Prove that a format is refused by its parameter's name, in a line."""
    (name,) = asked
    with pytest.raises(InvalidRequestError) as refused:
        compile_asked(asked)
    assert refused.value.parameter == name
    assert len(str(refused.value)) < 700 and "\n" not in str(refused.value)


@for_each("asked", REFUSED, ids=lambda asked: str(asked)[:60])
def test_what_would_hold_the_interpreter_is_refused_by_name(asked: dict[str, Any]) -> None:
    require_refusal(asked)


@pytest.mark.gate
@for_each("asked", REFUSED_SLOWLY, ids=lambda asked: str(asked)[:60])
def test_what_costs_much_to_refuse_is_refused_by_name(asked: dict[str, Any]) -> None:
    require_refusal(asked)


def test_the_limit_is_told_with_its_remedy() -> None:
    with pytest.raises(InvalidRequestError, match=r"too expensive to begin.*shorten repeats"):
        compile_asked({"regex": "(a?){4000}a{4000}"})
    with pytest.raises(InvalidRequestError, match=f"501 parts.*at most {MOST_OPTIONAL_PARTS}"):
        compile_asked({"regex": "a?" * 501})


def test_the_schema_of_a_tool_has_the_same_limits() -> None:
    schema = '{"type": "string", "pattern": "^(a?){4000}a{4000}$"}'
    calls = OutputFormat("tool_choice", "lark", f'start: "<call>" %json {schema}')
    with pytest.raises(InvalidRequestError, match="`tool_choice`.*too expensive"):
        compile_grammar(calls, byte_tokenizer(), 260)


@for_each(
    "asked",
    [
        {"json_schema": {"const": "a" * 2**20}},
        {"json_schema": '{"const": "' + "a" * 2**20 + '"}'},
        {"json_schema": {"enum": [[1, 2.5, None, True]] * 2**17}},
        {"json_schema": {"properties": {f"key{number}": {} for number in range(2**17)}}},
        {"json_schema": {"const": 1 << 2**23}},
    ],
    ids=lambda asked: str(asked)[:40] if not isinstance(asked["json_schema"], dict) else "dict",
)
def test_a_large_schema_is_refused_before_it_is_read(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncgen.structured.output_format.json", None)
    with pytest.raises(InvalidRequestError, match="`json_schema` is .*too large: at most 1048576"):
        read_output_format(asked)


def test_a_large_schema_of_a_tool_is_refused_before_it_is_read() -> None:
    function = {"name": "f", "parameters": {"const": "a" * 2**20}}
    with pytest.raises(InvalidRequestError, match="`tools` is 'f': it is too large"):
        _kept(function, "tools")


def test_a_large_choice_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncgen.structured.output_format.json", None)
    with pytest.raises(InvalidRequestError, match="`choice` is .*at most 65536"):
        read_output_format({"choice": ["a", "b" * 2**16]})


@for_each(("pattern", "text", "other"), ACCEPTED, ids=lambda text: text[:30])
def test_expressions_that_people_use_are_exact(pattern: str, text: str, other: str) -> None:
    grammar = compile_asked({"regex": pattern})
    matcher = grammar.matcher([EOS])
    assert all(map(matcher.accept, text.encode())) and matcher.is_complete
    matcher = grammar.matcher([EOS])
    assert not (all(map(matcher.accept, other.encode())) and matcher.is_complete)


@for_each(
    ("pattern", "count"),
    [
        (r"(a?){4}a{4}", 3),
        (r"\p{L}{3}\x{41}\?\*\{[?*{]", 1),
        (r"(?:a|b)(?i)(?P<x>c)", 0),
        (r"(|a)(b|)|c||d|", 5),
        (r"[^\]?]x?[[a]*]y?", 2),
        ("(?x) ( | a )", 2),
        ("[a?*", 2),
        ("[" * 60_000 + "?", 1),
        ("\\", 0),
    ],
)
def test_parts_that_may_be_empty_are_counted(pattern: str, count: int) -> None:
    assert optional_parts(pattern) == count


def test_a_terminal_counts_what_it_refers_to() -> None:
    lines = ["start: A /b?/ x", "x: A ~ 2..3", "A: B B", 'B: "?*" /[?]c?/ D // e?', 'D: ("d" |)']
    cost = LarkCost("\n".join(lines))
    assert cost.problem is None and not cost.products
    joined = LarkCost(
        "\n".join([*lines, "%ignore / +/", "E: F", "F: A &", "  ~/f/", "%ignore /x/"])
    )
    assert joined.products == ["E", "F"]
    assert "ignore" not in joined.terminals and "~/f/" in joined.terminals
    assert "start" not in joined.terminals and "D: " in joined.terminals


def test_terminals_that_exclude_words_are_exact() -> None:
    grammar = compile_asked({"grammar": 'start: X "."\nX: /[a-z]+/ & ~/(foo|bar)/'})
    for text, is_right in (("fool.", True), ("foo.", False), ("b.", True)):
        matcher = grammar.matcher([EOS])
        assert (all(map(matcher.accept, text.encode())) and matcher.is_complete) is is_right


class _Timed:
    """A matcher that keeps the longest time of its calls that hold the interpreter or a step."""

    longest = 0.0

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)

        def timed(*args: Any) -> Any:
            begin = time.thread_time()
            found = call(*args)
            if name != "compute_bitmask":  # gives the interpreter up, before a request runs
                _Timed.longest = max(_Timed.longest, time.thread_time() - begin)
            return _Timed(found) if name == "deep_copy" else found

        return timed


@pytest.mark.soak
@pytest.mark.timeout(600)
@for_each("asked", [*REFUSED, *REFUSED_SLOWLY, *BOUNDED], ids=lambda asked: str(asked)[:60])
def test_no_call_holds_the_interpreter_for_long(
    asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import llguidance

    class Engine:
        grammar_from_json_schema = llguidance.LLMatcher.grammar_from_json_schema
        grammar_from_lark = llguidance.LLMatcher.grammar_from_lark
        grammar_from_regex = llguidance.LLMatcher.grammar_from_regex

        def __new__(cls, *args: Any, **options: Any) -> Any:
            return _Timed(real(*args, **options))

    real, _Timed.longest = llguidance.LLMatcher, 0.0
    monkeypatch.setattr(llguidance, "LLMatcher", Engine)
    begin = time.thread_time()
    rng, steps = random.Random(0), 0
    try:
        grammar = compile_asked(asked)
        matcher = grammar.matcher([EOS])
        words = torch.empty(grammar.num_words, dtype=torch.int32)
        while not matcher.is_over and steps < 120 and time.thread_time() - begin < 3:
            steps += 1
            matcher.fill(words)
            allowed = [
                number for number in range(EOS) if int(words[number // 32]) >> number % 32 & 1
            ]
            if not allowed:
                break
            liked = [number for number in allowed if chr(number) in 'xyabcd"'] or allowed
            matcher.accept(rng.choice(liked if rng.random() < 0.95 else allowed))
    except InvalidRequestError as error:
        assert error.parameter in asked
    assert _Timed.longest < _ALLOWED_SECONDS
