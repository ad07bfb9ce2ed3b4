"""Tests of `asyncgen.text.pattern_trial`: expressions that take too long are refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.errors import ModelLoadError
from asyncgen.runtime.wanted import UnwantedError, asking
from asyncgen.text import pattern_trial
from asyncgen.text.known_patterns import KNOWN_PATTERNS
from asyncgen.text.pattern_trial import MOST_CHARACTERS, seconds_of, trouble_of
from asyncgen.text.pattern_trial_process import classes, letters, texts, trouble
from tests.cases import for_each
from tests.checkpoints.gguf.test_pre_tokenizers import RULES

if TYPE_CHECKING:
    from pathlib import Path

SLOW = {
    r"(a+)+b$": "gives up over a long run of 'a'",
    r"(x+x+)+y": "gives up over a long run of 'x'",
    r"(\x78+)+y": "gives up over a long run of 'x'",
    r"(?<=q)(z+)+$": "gives up over a long run of 'z'",
    r"a+b": "grows faster than a long run of 'a'",
    r"\s+$": "grows faster than a long run of ' '",
    r".*,.*;": "grows faster than a long run of",
    r"(\d+[a-z]+)+$": "over a long run of|faster than a long run of",
    r"(?:foo)+bar": "faster than a long run of 'foo'",
    r"\p{Thai}+\p{Thai}+[0-9]": "faster than a long run of '\u0e01'",
    r"[P-X]+[Q-W]+[0-9]": "faster than a long run of '[P-X]'",
    r"[[:punct:]&&[^\p{P}]]+[\p{S}&&[^\p{Sc}]]+x": "faster than a long run of",
    r"[\x{10A00}-\x{10A35}]+\p{Kharoshthi}+1": "than a long run of '[\U00010a00-\U00010a35]'",
    r"(\p{Georgian}+\p{Thai}+)+$": "faster than a long run of",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*$)": "faster than a long run of '1'",
}
QUICK = (r"\w+|\W", r"[A-Z]?[a-z]+|\d{1,3}|\s+|[^\w\s]+", "(?i:hello|world)", r"(?<=\d)\s(?=\d)")


@pytest.mark.gate
@for_each("pattern", list(SLOW))
def test_expressions_whose_time_is_not_linear_are_told(pattern: str) -> None:
    found = trouble(pattern)
    assert found is not None and re.search(SLOW[pattern], found), found


@pytest.mark.gate
@for_each("pattern", QUICK)
def test_expressions_whose_time_is_linear_pass(pattern: str) -> None:
    assert trouble(pattern) is None


@pytest.mark.soak
@pytest.mark.timeout(300)
@for_each("pattern", sorted(map(str, KNOWN_PATTERNS)))
def test_known_expressions_are_linear_but_for_a_few(pattern: str) -> None:
    slow = (
        r"\s+$",
        r"\d{1,3}(?=(?:\d{3})*\b)",
        r"(?=(\d{3})+(?!\d))",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
        " +\u2581",
        "^\u2581+$",
    )
    assert trouble(pattern) is None or pattern in slow


def test_expressions_of_the_models_that_are_read_are_known() -> None:
    for rules in RULES.values():
        for rule in rules:
            assert rule in KNOWN_PATTERNS, rule


def play(monkeypatch: pytest.MonkeyPatch, place: Path, code: str) -> None:
    """Let a process of such code try expressions."""
    file = place / "trial.py"
    file.write_text(code)
    monkeypatch.setattr(pattern_trial, "_PROCESS", file)


def test_a_process_of_its_own_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries again before it refuses, and the answer is kept."""
    started: list[Any] = []
    start = subprocess.Popen

    def count(*given: Any, **more: Any) -> Any:
        started.append(given)
        return start(*given, **more)

    monkeypatch.setattr(subprocess, "Popen", count)
    for _ in range(2):
        found = trouble_of("(a+)+cd$")
        assert found is not None and "gives up over a long run of 'a'" in found
    assert len(started) == 2 and started[0][0][0] == sys.executable


@for_each(
    ("answer", "said"),
    [
        (b"", "more time or memory than it may"),
        (b"null", None),
        (b'"slow"', "slow"),
    ],
)
def test_what_a_trial_says(
    answer: bytes, said: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, f"print({answer.decode()!r})")
    found = trouble_of(f"b+{answer!r}")
    assert found is None if said is None else said in str(found)


def test_a_trial_says_how_long_it_took(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert trouble_of("a[bc]d+") is None
    assert 0 < seconds_of("a[bc]d+") < 10
    play(monkeypatch, tmp_path, "print('null'); print(1.5)")
    assert trouble_of("long") is None
    assert seconds_of("long") == 1.5


def test_a_trial_that_does_not_end_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, "import time; time.sleep(99)")
    monkeypatch.setattr(pattern_trial, "MOST_SECONDS", 0.3)
    assert "does not come to an end" in str(trouble_of("never"))


def test_a_trial_that_nobody_waits_for_is_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    play(monkeypatch, tmp_path, "import time; time.sleep(99)")
    answers = iter([True, True, False])
    with asking(lambda: next(answers)), pytest.raises(UnwantedError):
        trouble_of("left")
    assert next(answers, None) is None


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", os.devnull + "/nothing")
    with pytest.raises(ModelLoadError, match="no process can be started to try a regular"):
        trouble_of("c+d+")


def test_long_expressions_are_not_tried() -> None:
    assert f"at most {MOST_CHARACTERS} are tried" in str(trouble_of("a" * (MOST_CHARACTERS + 1)))


def test_texts_repeat_what_an_expression_spells_out() -> None:
    runs = {run for _, run, _ in texts(r"(?:foo|\x71|\u0416|\x{1f600})+")}
    assert {"a", "1", " ", "a1", "foo", "q", "\u0416", "\U0001f600"} <= runs


@for_each(
    ("pattern", "found"),
    [
        (r"a\[b[c-d[^e]]f\p{Thai}\d", ["[c-d[^e]]", r"\p{Thai}", r"\d"]),
        (r"[]x]+[^]y]|\P{Han}", ["[]x]", "[^]y]", r"\P{Han}"]),
        (r"[[:punct:]&&[^\p{P}]]\]", [r"[[:punct:]&&[^\p{P}]]"]),
        (r"[a\]b]\S", [r"[a\]b]", r"\S"]),
        ("[unclosed", ["[unclosed"]),
        ("plain", []),
    ],
)
def test_classes_that_an_expression_names(pattern: str, found: list[str]) -> None:
    assert list(classes(pattern)) == found


def test_a_letter_for_each_way_to_lie_in_the_classes_of_an_expression() -> None:
    pattern = r"[P-X]+[Q-W]+\p{Thai}"
    found, outsider = letters(pattern, pattern)
    ways = {
        (letter in "PQRSTUVWX", letter in "QRSTUVW", "\u0e01" <= letter <= "\u0e5b")
        for letter in found
    }
    assert ways == {(True, False, False), (True, True, False), (False, False, True)}
    assert len(found) == 3 and outsider not in "PQRSTUVWX"
    assert letters("plain", "plain")[0] == []


def test_the_process_is_limited() -> None:
    resource = pytest.importorskip("resource")
    code = (
        "from asyncgen.text.pattern_trial_process import limit; import resource; limit();"
        "print(*resource.getrlimit(resource.RLIMIT_CPU), *resource.getrlimit(resource.RLIMIT_AS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "3", str(2 * 1024**3), str(2 * 1024**3)]
    assert resource.getrlimit(resource.RLIMIT_CPU)[0] != 3 and pattern_trial.MOST_SECONDS == 30
