"""Small questions whose answers are known: sums, days, words and recall."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

from asyncgen_apps.demo_model import copying, facts

if TYPE_CHECKING:
    from asyncgen_apps.demo_model.decode import AnswerAll

SUBJECTS: dict[str, facts.Maker] = {
    "sums": facts.arithmetic,
    "days and months": facts.calendar,
    "counting": facts.counting,
    "opposites, colours, foreign words and emoji": facts.words,
    "recall of what the prompt told": copying.recall,
}


def agrees(subject: str, answer: str, expected: str) -> bool:
    """Tell whether an answer is right.

    Args:
        subject: One of the subjects.
        answer: Answer of the model.
        expected: Answer of the corpus.

    Returns:
        True if the last number agrees, for sums; else if the texts do.
    """
    if subject == "sums":
        return re.findall(r"\d+", answer)[-1:] == re.findall(r"\d+", expected)[-1:]
    return answer == expected


def quiz(answer: AnswerAll, count: int, seed: int = 13) -> dict[str, int]:
    """Ask small questions and count the right answers.

    Args:
        answer: The model.
        count: Number of questions for each subject.
        seed: Seed of the drawing.

    Returns:
        The number of right answers for each subject.
    """
    right = {}
    for subject, make in SUBJECTS.items():
        rng = random.Random(f"{subject}:{seed}")
        pairs = [make(rng) for _ in range(count)]
        replies = answer([[{"role": "user", "content": ask}] for ask, _ in pairs])
        checked = zip(replies, pairs, strict=True)
        right[subject] = sum(agrees(subject, reply, expected) for reply, (_, expected) in checked)
    return right
