"""Stories keep to the wish and to their grammar."""

from __future__ import annotations

import random
import re

import pytest

from asyncgen_apps.demo_model import plots
from asyncgen_apps.demo_model.stories import Wish, capitalise, plot_for, tell
from asyncgen_apps.demo_model.world import named, unnamed


@pytest.mark.parametrize("plot", plots.PLOTS)
def test_a_story_holds_what_was_wished_for(plot: str) -> None:
    for seed in range(40):
        wish = Wish(named("Mina", True), "kite", "harbour", "red", plot)
        story = tell(random.Random(seed), wish)
        assert "Mina" in story.text
        assert "red kite" in story.text
        assert "at the harbour" in story.text
        assert story.helper.word in story.text
        assert {"Mina", "kite"} <= set(re.findall(r"\w+", story.summary))
        assert {"Mina", "kite"} <= set(re.findall(r"\w+", story.short))


def test_no_slot_is_left_and_every_sentence_begins_with_a_capital() -> None:
    for seed in range(400):
        text = tell(random.Random(seed)).text
        assert "{" not in text
        assert "  " not in text
        assert not re.search(r"(^|[.!?] )\"?[a-z]", text), text
        assert 40 <= len(text.split()) <= 170


def test_capitalise_leaves_speech_tags_alone() -> None:
    text = '"oh!" said the fox. "is it mine?" it was.'
    assert capitalise(text) == '"Oh!" said the fox. "Is it mine?" it was.'


def test_nobody_breaks_a_pie() -> None:
    assert all(plot_for(random.Random(seed), "pie") != "broken" for seed in range(60))


def test_two_wished_characters_both_appear() -> None:
    wish = Wish(unnamed("fox", True), helper=unnamed("owl", False))
    story = tell(random.Random(1), wish)
    assert "fox" in story.text
    assert "owl" in story.text
