"""The counting of the evaluation and of the quiz, with models that are functions."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from asyncgen_apps.demo_model import evaluate, facts, quiz
from asyncgen_apps.demo_model.decode import one_by_one
from asyncgen_apps.demo_model.world import held_out

if TYPE_CHECKING:
    from asyncgen_apps.demo_model.chat import Message


PROMPTS = [
    evaluate.Prompt("Tell me a story about a fox and a key.", "fox", "key", "hill"),
    evaluate.Prompt("Tell me a story about Mina and a map.", "Mina", "map", "lake"),
]


def _last(messages: list[Message]) -> str:
    return messages[-1]["content"]


_echo = one_by_one(_last)


def test_words_count_only_as_a_whole() -> None:
    assert evaluate.says("The Fox ran.", "fox")
    assert not evaluate.says("The foxglove and the monkey.", "key")


def test_score_counts_each_part() -> None:
    answers = ["The fox had a key on the hill.", "Mina sat at the lake. [cut off]"]
    score = evaluate.score(PROMPTS, answers)
    assert (score.prompts, score.both, score.character, score.thing) == (2, 1, 2, 1)
    assert (score.place, score.ended) == (2, 1)


def test_held_out_prompts_are_held_out_and_name_their_parts() -> None:
    prompts = evaluate.held_out_prompts(100)
    assert len({(prompt.character, prompt.thing) for prompt in prompts}) == 100
    assert all(held_out(prompt.character, prompt.thing) for prompt in prompts)
    score = evaluate.put(_echo, prompts)
    assert score.both == score.place == score.ended == 100


def test_invented_prompts_name_their_parts() -> None:
    assert evaluate.put(_echo, evaluate.invented_prompts(20)).both == 20


def test_follow_ups_see_the_whole_conversation() -> None:
    def answer(messages: list[Message]) -> str:
        return messages[0]["content"] if len(messages) == 3 else "A story."

    assert evaluate.follow_ups(one_by_one(answer), PROMPTS) == 2
    assert evaluate.follow_ups(one_by_one(lambda _: "I do not know that."), PROMPTS) == 0


def test_there_are_ten_samples() -> None:
    conversations = evaluate.samples(_echo)
    assert len(conversations) == 10
    assert any(len(conversation) == 4 for conversation in conversations)


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
