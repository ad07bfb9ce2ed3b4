"""The counting of the quiz."""

from __future__ import annotations

import random

from asyncgen_apps.demo_model import facts, quiz
from asyncgen_apps.demo_model.decode import one_by_one


def test_sums_agree_in_any_form() -> None:
    assert quiz.agrees("sums", "7 plus 8 is 15.", "7 + 8 = 15.")
    assert not quiz.agrees("sums", "7 + 8 = 14.", "7 + 8 = 15.")
    assert not quiz.agrees("sums", "I do not know.", "7 + 8 = 15.")


def test_a_model_that_knows_everything_gets_everything_right() -> None:
    known: dict[str, str] = {}
    for subject, make in quiz.SUBJECTS.items():
        rng = random.Random(f"{subject}:13")
        known.update(make(rng) for _ in range(20))
    right = quiz.quiz(one_by_one(lambda messages: known[messages[0]["content"]]), 20)
    assert set(right.values()) == {20}


def test_a_model_that_knows_nothing_gets_nothing_right() -> None:
    right = quiz.quiz(one_by_one(lambda _: "I do not know that."), 10)
    assert right == dict.fromkeys(quiz.SUBJECTS, 0)
    assert "sums" in right
    assert quiz.SUBJECTS["sums"] is facts.arithmetic
