"""Facts are right."""

from __future__ import annotations

import random
import re

from asyncgen_apps.demo_model import facts

SIGNS = {"+": 1, "plus": 1, "-": -1, "minus": -1}


def test_sums_are_right() -> None:
    for seed in range(300):
        _, answer = facts.arithmetic(random.Random(seed))
        match = re.fullmatch(r"(\d+) (\S+) (\d+) (?:=|is) (\d+)\.", answer)
        assert match is not None
        left, result, right = int(match[1]), int(match[4]), int(match[3])
        sign = SIGNS.get(match[2])
        assert result == (left * right if sign is None else left + sign * right)


def test_calendar_facts_are_right() -> None:
    pairs = [facts.calendar(random.Random(seed)) for seed in range(200)]
    answers = {answer for _, answer in pairs}
    assert "Monday comes after Sunday." in answers
    assert "December comes before January." in answers
    assert "Monday comes before Sunday." not in answers


def test_counting_reaches_both_ends() -> None:
    for seed in range(100):
        ask, answer = facts.counting(random.Random(seed))
        if ask.startswith("Count"):
            ends = {int(number) for number in re.findall(r"\d+", ask)}
            numbers = [int(number) for number in re.findall(r"\d+", answer)]
            assert {numbers[0], numbers[-1]} == ends


def test_lists_hold_as_many_items_as_asked_for() -> None:
    for seed in range(200):
        ask, answer = facts.listing(random.Random(seed))
        wanted = next(
            number
            for number in range(2, 7)
            if re.search(rf"\b({number}|{facts.NUMBERS[number]})\b", ask)
        )
        items = [line for line in answer.splitlines() if re.match(r"- |\d\. |\| [a-z]", line)]
        assert len(items) == wanted


def test_words_hold_scripts_beyond_ascii() -> None:
    text = "".join(facts.words(random.Random(seed))[1] for seed in range(300))
    assert re.search("[぀-ヿ一-鿿]", text)
    assert re.search("[éüñ]", text)
    assert "🦊" in text or "🐻" in text
