"""Conversations alternate and their answers follow from the story."""

from __future__ import annotations

import random

from asyncgen_apps.demo_model import chat, phrases
from asyncgen_apps.demo_model.stories import tell


def test_roles_alternate() -> None:
    for seed in range(60):
        messages = chat.converse(random.Random(seed), 4)
        roles = [message["role"] for message in messages if message["role"] != "system"]
        assert roles == ["user", "assistant"] * 4


def test_a_brief_system_prompt_is_honoured() -> None:
    brief = []
    for seed in range(300):
        messages = chat.converse(random.Random(seed), 1)
        if messages[0]["content"] in phrases.BRIEF:
            brief.append(messages[-1]["content"])
    assert brief
    assert max(len(answer.split()) for answer in brief) < 40


def test_emoji_are_appended_when_asked_for() -> None:
    for seed in range(300):
        messages = chat.converse(random.Random(seed), 2)
        if messages[0]["content"] == "End every answer with an emoji.":
            answers = [m["content"] for m in messages if m["role"] == "assistant"]
            assert all(ord(answer[-1]) > 0x2000 for answer in answers)


def test_questions_are_filled_in() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        ask, answer = chat.question(rng, tell(rng))
        assert "{" not in ask + answer
        assert answer[0].isupper()


def test_a_request_names_its_hero() -> None:
    for seed in range(300):
        text, wish = chat.request(random.Random(seed))
        if wish.hero is not None:
            assert wish.hero.word.lower() in text.lower()
        if wish.thing is not None:
            assert wish.thing in text.lower()
