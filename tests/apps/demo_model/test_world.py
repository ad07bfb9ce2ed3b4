"""The world's vocabulary and the held-out rule."""

from __future__ import annotations

import random

from asyncgen_apps.demo_model import world
from asyncgen_apps.demo_model.story_details import KINDS, PLACE_NOTES


def test_article_follows_the_sound() -> None:
    phrases = ("owl", "fox", "unicorn", "umbrella", "honest king", "useful map")
    expected = ["an owl", "a fox", "a unicorn", "an umbrella", "an honest king", "a useful map"]
    assert [world.article(phrase) for phrase in phrases] == expected


def test_trade_decides_the_pronoun() -> None:
    assert world.unnamed("queen", female=False).he == "she"
    assert world.unnamed("king", female=True).he == "he"
    assert world.named("Mina", female=True).intro == "a girl named Mina"


def test_characters_are_drawn_from_the_seed() -> None:
    first = [world.random_character(random.Random(3)) for _ in range(5)]
    second = [world.random_character(random.Random(3)) for _ in range(5)]
    assert first == second


def test_about_one_pair_in_forty_is_held_out() -> None:
    pairs = world.held_out_pairs()
    total = len(world.CHARACTER_WORDS) * len(world.OBJECT_WORDS)
    assert 0.8 < len(pairs) * world.HELD_OUT_ONE_IN / total < 1.2


def test_a_held_out_pair_is_noticed_in_any_case_and_order() -> None:
    character, thing = next(pair for pair in world.held_out_pairs() if pair[0].islower())
    assert world.mentions_held_out(f"The {thing.upper()} of a {character}.")
    assert world.mentions_held_out(f"{character.capitalize()}? Some {thing}!")
    assert not world.mentions_held_out(f"a {character} alone")
    name, thing = next(pair for pair in world.held_out_pairs() if not pair[0].islower())
    assert world.mentions_held_out(f"tell me about {name.lower()} and a {thing}")


def test_every_place_and_object_has_fitting_details() -> None:
    assert set(PLACE_NOTES) == set(world.PLACES)
    assert {noun for nouns in KINDS.values() for noun in nouns} == world.OBJECT_WORDS
