"""Openings introduce the hero, and all sentences end."""

from __future__ import annotations

from asyncgen_apps.demo_model import frames


def test_openings_introduce_the_hero_in_the_place() -> None:
    assert all("{intro}" in text and "{p}" in text for text in frames.OPENINGS)


def test_sentences_end() -> None:
    texts = (*frames.OPENINGS, *filter(None, frames.SETTINGS), *frames.ENDINGS)
    assert all(text.endswith(".") for text in texts)


def test_some_emoji_take_several_code_points() -> None:
    assert any(len(emoji) > 1 for emoji in frames.EMOJI)
