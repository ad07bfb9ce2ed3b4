"""A row whose format becomes too complex fails alone: others of the same format go on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.structured import grammar_compiler, prototype
from asyncgen.structured.grammar_compiler import compile_grammar, compiler_of
from asyncgen.structured.output_format import read_output_format
from tests.cases import for_each
from tests.doubles.models import TableModel, byte_tokenizer
from tests.engine.batches import Bench, alone, ids_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncgen.structured.grammar import Grammar, Matcher

EOS = 256
MODEL = TableModel(eos_bias=0.5)
COSTLY = "(a?){4000}a{4000}"
ASKED: list[tuple[dict[str, Any], str, str]] = [
    ({"regex": f"x{COSTLY}|[yz][bc]{{2,40}}d{{30}}e"}, "xaaa", "ybcbc" + "d" * 30 + "e"),
    ({"regex": f"[xy]({COSTLY}|[b-d]+)"}, "xaaa", "ybcdbcd"),
    ({"json_schema": {"type": "string", "pattern": f"^(x{COSTLY}|y[b-d]+)$"}}, '"xaaa', '"ybcd"'),
    ({"grammar": f'start: /x{COSTLY}/ | /[yz]/ "bcd" /[a-z]+/'}, "xaaa", "ybcdxyz"),
]
"""Formats with a text that costs too much, and one that does not."""


@pytest.fixture(autouse=True)
def any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """New lexers may take as long as a busy machine needs."""
    monkeypatch.setattr(prototype, "_MOST_RENEWING", float("inf"))


def compiled(asked: dict[str, Any], tokenizer: Any) -> Grammar:
    """The grammar of a request."""
    output_format = read_output_format(asked)
    assert output_format is not None
    return compile_grammar(output_format, tokenizer, 260)


def steps(matcher: Matcher, text: str) -> list[tuple[tuple[int, ...], list[int], bool]]:
    """What a row is told before each of its bytes, as a decoding loop asks."""
    words = torch.empty(matcher.grammar.num_words, dtype=torch.int32)
    told = []
    for token_id in text.encode():
        matcher.fill(words)
        told.append((matcher.forced, words.tolist(), matcher.is_complete))
        assert matcher.accept(token_id)
    return told


def exhaust(grammar: Grammar, text: str) -> None:
    """Drive a row of a request to where its format is too complex."""
    with pytest.raises(InvalidRequestError, match="too complex.*lexer error"):
        steps(grammar.matcher([EOS]), text)


def check_neighbours(asked: dict[str, Any], costly: str, text: str, places: Iterable[int]) -> None:
    """Exhaust the lexer when a neighbour is at some places of its text."""
    tokenizer = byte_tokenizer()
    alone = steps(compiled(asked, tokenizer).matcher([EOS]), text)
    for place in places:
        neighbour = compiled(asked, tokenizer).matcher([EOS])
        told = steps(neighbour, text[:place])
        exhaust(compiled(asked, tokenizer), costly)
        told += steps(neighbour, text[place:])
        assert told == alone and neighbour.is_complete
        neighbour.rollback(len(text) - 1)
        neighbour.follow(text.encode())
        assert neighbour.is_complete
        assert steps(compiled(asked, tokenizer).matcher([EOS]), text) == alone  # a third request
        compiler_of("regex", tokenizer, 260)._kept.clear()


@for_each(("asked", "costly", "text"), ASKED[1:3], ids=lambda asked: str(asked)[:30])
def test_a_row_that_exhausts_the_lexer_fails_alone(
    asked: dict[str, Any], costly: str, text: str
) -> None:
    check_neighbours(asked, costly, text, [0, 3])


@pytest.mark.gate
@for_each(("asked", "costly", "text"), ASKED, ids=lambda asked: str(asked)[:30])
def test_it_fails_alone_wherever_its_neighbour_stands(
    asked: dict[str, Any], costly: str, text: str
) -> None:
    check_neighbours(asked, costly, text, range(len(text)))


def test_states_of_several_rows_may_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer meets 50 states, no lexer may have more than 80, and none of them fails."""
    monkeypatch.setitem(grammar_compiler._LIMITS, "max_lexer_states", 80)
    asked = {"regex": "|".join(f"{first}[{first}-z]{{50}}" for first in "abcdef")}
    tokenizer = byte_tokenizer()
    first_lexer = compiled(asked, tokenizer)._prototype
    for first in "abcdef":
        matcher = compiled(asked, tokenizer).matcher([EOS])
        assert len(steps(matcher, first + "z" * 50)) == 51 and matcher.is_complete
    assert first_lexer.is_broken
    exhaust(compiled({"regex": "[a-z]{100}"}, tokenizer), "z" * 100)


def test_a_format_that_has_not_begun_begins_with_a_new_lexer() -> None:
    asked, costly, text = ASKED[1]
    tokenizer = byte_tokenizer()
    output_format = read_output_format(asked)
    assert output_format is not None
    grammar = compile_grammar(replace(output_format, after="<m>"), tokenizer, 260)
    neighbour = grammar.matcher([EOS])
    exhaust(compiled(asked, tokenizer), costly)
    assert all(map(neighbour.accept, f"so <m>{text}".encode()))
    assert neighbour.is_complete and not neighbour.is_free


def test_the_other_rows_of_a_request_end_without_new_lexers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, costly, text = ASKED[0]
    grammar = compiled(asked, byte_tokenizer())
    rows = [grammar.matcher([EOS]) for _ in range(4)]
    exhaust(grammar, costly)
    monkeypatch.setattr(prototype, "Prototype", None)  # none can be made
    for row in rows:
        with pytest.raises(InvalidRequestError, match="too complex"):
            steps(row, text)


def test_new_lexers_have_a_budget_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prototype, "_MOST_RENEWING", 0.1)
    budget = prototype.RenewalBudget()
    assert budget.takes(0.06) and not budget.takes(0.06) and not budget.takes(1.0)


def test_a_neighbour_in_the_batch_keeps_its_tokens() -> None:
    format_ = ASKED[1][0]
    given = {**format_, "suppress_tokens": [ord("a")], "temperature": 1.0}
    given |= {"min_new_tokens": 12, "max_new_tokens": 30}
    expected = [alone(MODEL, "abc", **given, seed=seed)[0] for seed in (1, 2)]
    bench = Bench(MODEL, pages=200)
    _, neighbour = bench.add("abc", **given, seed=1)
    _, culprit = bench.add("abc", **format_, suppress_tokens=list(b"bcd"), max_new_tokens=30)
    _, later = bench.add("abc", **given, seed=2)
    bench.run()
    error = culprit.items[-1]
    assert isinstance(error, InvalidRequestError) and "too complex" in str(error)
    assert [ids_of(neighbour), ids_of(later)] == expected
    _, third = bench.add("abc", **given, seed=2)
    bench.run()
    assert ids_of(third) == expected[1] and min(map(len, expected)) > 12
    bench.require_empty()
