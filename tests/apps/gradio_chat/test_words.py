"""Words become the ids of their spellings."""

from __future__ import annotations

from asyncgen_apps.gradio_chat.words import banned, required


def _letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_a_word_begins_a_text_or_follows_a_space() -> None:
    assert banned(["a", " b "], _letters) == [[97], [32, 97], [98], [32, 98]]
    assert required(["a", "b"], _letters) == [[[97], [32, 97]], [[98], [32, 98]]]
    assert banned([" "], lambda text: _letters(text.strip())) == []


def test_a_spelling_that_another_begins_is_not_repeated() -> None:
    assert banned(["a"], lambda text: [7] if text == "a" else [7, 8]) == [[7]]
    assert required(["a"], lambda text: [7]) == [[[7]]]
