"""Searches find what ``re`` finds, in pieces as at once, and in linear time."""

from __future__ import annotations

import random
import re

import pytest

from asyncgen.text.response_template.patterns import Literals, Match, Pattern, PatternError
from tests.cases import for_each

ATOMS = ["a", "b", "[ab]", "[^a]", ".", r"\w", r"\s", "(?P<x>a|ab)", "(?:b|)", "(a*)*", "^", r"\Z"]
ATOMS += [r"\b", r"\B", r"\d", r"[^\n-z]", " "]
COUNTS = ["", "", "*", "+", "?", "*?", "+?", "??", "{1,2}", "{2}"]


def found(pattern: Pattern | Literals, text: str, step: int) -> Match | None:
    """Search a text that comes in pieces of so many characters."""
    search = pattern.search()
    for end in range(step, len(text), step):
        search.run(text[:end], 0, is_complete=False)
    search.run(text, 0, is_complete=True)
    return search.found


def test_matches_are_those_of_re() -> None:
    rng = random.Random(3)
    for _ in range(1500):
        source = "".join(rng.choice(ATOMS) + rng.choice(COUNTS) for _ in range(rng.randrange(1, 5)))
        source = source.replace("^*", "^").replace("^+", "^")
        try:
            reference = re.compile(source, re.DOTALL)
            pattern = Pattern.compile(source)
        except (re.error, PatternError):
            continue
        text = "".join(rng.choice("aab1 \n") for _ in range(rng.randrange(1, 8)))
        wanted = reference.search(text)
        for step in (1, 2, 100):
            match = found(pattern, text, step)
            assert (match and match[:2]) == (wanted and wanted.span()), (source, text)


@for_each(
    ("source", "text", "groups"),
    [
        (r"to=(?P<name>\w+)", "x to=get_time ", {"name": "get_time"}),
        (r"<f=(?P<name>[^>\n]+)>", "<f=a b>", {"name": "a b"}),
        (r"(?P<a>x)|(?P<b>y)", "zy", {"b": "y"}),
        (r"(?P<k>\w+?)=(?P<v>.*?);", "key=a=b;c;", {"k": "key", "v": "a=b"}),
    ],
)
def test_named_groups_are_kept(source: str, text: str, groups: dict[str, str]) -> None:
    for step in (1, 3, 100):
        match = found(Pattern.compile(source), text, step)
        assert match is not None and match.groups == groups


def test_all_matches_of_a_text() -> None:
    for source, text in ((r"<p=(\w+)>.*?</p>", "<p=a>1</p> <p=b>2</p>"), ("a*", "aab")):
        spans = [match[:2] for match in Pattern.compile(source).matches(text)]
        assert spans == [each.span() for each in re.finditer(source, text)]


@for_each(
    ("source", "text"), [("(a+)+b", "a" * 5000), ("(a|a)*b", "a" * 5000), ("(.*a){6}b", "a" * 900)]
)
@pytest.mark.timeout(10)
def test_expression_that_runs_away_elsewhere_does_not(source: str, text: str) -> None:
    assert found(Pattern.compile(source), text, 1000) is None


def test_literal_waits_for_a_longer_one() -> None:
    literals = Literals(["<a", "<ab"])
    for step in (1, 2, 100):
        assert found(literals, "x<abc", step) == (1, 4, {})
        assert found(literals, "x<a c", step) == (1, 3, {})
        assert found(literals, "x<", step) is None
    search = Literals(["</end>"]).search()
    search.run("text </e", 0, is_complete=False)
    assert search.pending == 5 and search.found is None
    search.run("text </e x", 0, is_complete=False)
    assert search.pending is None


@for_each(
    ("source", "reason"),
    [
        (r"(?=a)b", "lookaround"),
        (r"(?<!a)b", "lookaround"),
        (r"(a)\1", "reference"),
        (r"a++", "possessive"),
        (r"(?>a)", "atomic"),
        (r"(?i)a", "flags"),
        (r"(?i:a)", "flags"),
        (r"(a", "no regular expression"),
        (r"a{1000}", "times"),
        (r"((a{20}){20}){20}", "states"),
        (5, "no text"),
    ],
)
def test_unsupported_patterns_are_refused_by_name(source: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        Pattern.compile(source)
