"""Conversations follow from their story; small talk, refusals, code, and exercises."""

from __future__ import annotations

import json
import random
import re

from asyncgen_apps.demo_model import chat, dialogues, phrases
from asyncgen_apps.demo_model.copying import recall, repeat
from asyncgen_apps.demo_model.stories import write_story
from asyncgen_apps.demo_model.world import mentions_held_out


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
        ask, answer = chat.question(rng, write_story(rng))
        assert "{" not in ask + answer
        assert answer[0].isupper()


def test_a_request_names_its_hero() -> None:
    for seed in range(300):
        text, request = chat.draw_request(random.Random(seed))
        if request.hero is not None:
            assert request.hero.word.lower() in text.lower()
        if request.thing is not None:
            assert request.thing in text.lower()


def test_code_compiles() -> None:
    for seed in range(120):
        _, answer = dialogues.code(random.Random(seed))
        language, _, body = answer.split("```")[1].partition("\n")
        if language == "json":
            assert "name" in json.loads(body)
        else:
            compile(body, "snippet", "exec")


def test_unknown_things_are_not_known() -> None:
    assert all("do not know" in dialogues.unknown(random.Random(seed))[1] for seed in range(40))


def test_small_talk_is_never_empty() -> None:
    assert all(all(dialogues.polite(random.Random(seed))) for seed in range(40))


def test_repeated_words_stand_in_the_request_in_order() -> None:
    for seed in range(100):
        ask, answer = repeat(random.Random(seed))
        words = re.findall(r"\w+", answer)
        assert words == re.findall(r"\w+", ask)[-len(words) :]
        assert not mentions_held_out(answer)


def test_recalled_facts_appear_in_the_question() -> None:
    for seed in range(100):
        ask, answer = recall(random.Random(seed))
        assert answer in ask
        assert ask.endswith("?")
