"""Stories keep to the wish and to their grammar; openings, plots, phrases and details fit."""

from __future__ import annotations

import random
import re
from string import Formatter

import pytest

from asyncgen_apps.demo_model import phrases, plots, story_parts
from asyncgen_apps.demo_model.plots import PLOTS
from asyncgen_apps.demo_model.stories import StoryRequest, capitalise, plot_for, write_story
from asyncgen_apps.demo_model.story_details import ANY_NOTES, KIND_NOTES, KINDS, notes
from asyncgen_apps.demo_model.world import named, unnamed


@pytest.mark.parametrize("plot", plots.PLOTS)
def test_story_contains_the_wished_elements(plot: str) -> None:
    for seed in range(40):
        request = StoryRequest(named("Mina", True), "kite", "harbour", "red", plot)
        story = write_story(random.Random(seed), request)
        assert "Mina" in story.text
        assert "red kite" in story.text
        assert "at the harbour" in story.text
        assert story.helper.word in story.text
        assert {"Mina", "kite"} <= set(re.findall(r"\w+", story.summary))
        assert {"Mina", "kite"} <= set(re.findall(r"\w+", story.short))


def test_no_slot_is_left_and_every_sentence_begins_with_a_capital() -> None:
    for seed in range(400):
        text = write_story(random.Random(seed)).text
        assert "{" not in text
        assert "  " not in text
        assert not re.search(r"(^|[.!?] )\"?[a-z]", text), text
        assert 40 <= len(text.split()) <= 170


def test_capitalise_leaves_speech_tags_alone() -> None:
    text = '"oh!" said the fox. "is it mine?" it was.'
    assert capitalise(text) == '"Oh!" said the fox. "Is it mine?" it was.'


def test_plot_of_a_pie_is_never_broken() -> None:
    assert all(plot_for(random.Random(seed), "pie") != "broken" for seed in range(60))


def test_two_wished_characters_both_appear() -> None:
    request = StoryRequest(unnamed("fox", True), helper=unnamed("owl", False))
    story = write_story(random.Random(1), request)
    assert "fox" in story.text
    assert "owl" in story.text


def test_openings_introduce_the_hero_in_the_place() -> None:
    assert all("{intro}" in text and "{p}" in text for text in story_parts.OPENINGS)


def test_sentences_end() -> None:
    texts = (*story_parts.OPENINGS, *filter(None, story_parts.SETTINGS), *story_parts.ENDINGS)
    assert all(text.endswith(".") for text in texts)


def test_some_emoji_take_several_code_points() -> None:
    assert any(len(emoji) > 1 for emoji in story_parts.EMOJI)


def test_requests_have_one_subject() -> None:
    assert all(text.count("{x}") == 1 for text in (*phrases.ASKS, *phrases.ANOTHER))


def test_every_plot_has_verbs_and_questions() -> None:
    assert set(phrases.VERBS) == set(phrases.QUESTIONS) == set(PLOTS)


def test_every_kind_has_notes() -> None:
    assert set(KINDS) == set(KIND_NOTES)
    assert notes("flute") == KIND_NOTES["music"]


def test_invented_objects_have_notes() -> None:
    assert notes("plooth") == ANY_NOTES


SLOTS = set(
    "intro h he him his kintro k kname khe khim khis ao o noun p pl q ql day time weather mood "
    "feel treat trouble".split()
)


def _slots(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("plot", PLOTS)
def test_plots_use_known_slots_and_bring_in_everything(plot: str) -> None:
    for stage in PLOTS[plot]:
        assert all(_slots(text) <= SLOTS for text in stage)
        assert len(set(stage)) == len(stage)
    for slot in ("ao", "kintro"):
        assert any(all(slot in _slots(text) for text in stage) for stage in PLOTS[plot])


def test_every_plot_has_a_one_sentence_summary() -> None:
    assert set(story_parts.SUMMARIES) == set(story_parts.SHORT) == set(PLOTS)
