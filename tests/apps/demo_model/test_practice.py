"""Exercises are answered from the prompt alone."""

from __future__ import annotations

import random
import re

from asyncgen_apps.demo_model.practice import recall, repeat
from asyncgen_apps.demo_model.world import mentions_held_out


def test_repeated_words_stand_in_the_request_in_order() -> None:
    for seed in range(100):
        ask, answer = repeat(random.Random(seed))
        words = re.findall(r"\w+", answer)
        assert words == re.findall(r"\w+", ask)[-len(words) :]
        assert not mentions_held_out(answer)


def test_recalled_facts_were_told() -> None:
    for seed in range(100):
        ask, answer = recall(random.Random(seed))
        assert answer in ask
        assert ask.endswith("?")
