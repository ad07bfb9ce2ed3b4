"""The text of a sample goes on from a text prompt, and stands alone after messages."""

from __future__ import annotations

from typing import Any

from asyncgen.engine.output.sample_text import SampleText
from tests.doubles.models import byte_tokenizer
from tests.engine.making import request_for


def sample(prompt: Any = "abc", **given: Any) -> SampleText:
    """The text of a request."""
    request, _ = request_for(prompt, **given)
    return SampleText(byte_tokenizer(), request)


def test_text_goes_on_from_the_prompt() -> None:
    text = sample([97, 0xC3])
    assert text.add([0xA9, 98]) == ("éb", None)
    assert text.finish() == ("", None)


def test_an_answer_to_messages_stands_alone() -> None:
    text = sample([{"role": "user", "content": "hi"}])
    # The template's end cannot complete a character: the byte is invalid by itself.
    assert text.add([0xA9])[0] + text.finish()[0] == "\ufffd"


def test_the_rest_is_an_incomplete_character() -> None:
    text = sample()
    assert text.add([0xE6, 0xBC]) == ("", None)
    assert text.finish() == ("\ufffd", None)


def test_a_possible_beginning_of_a_stop_string_is_held_back() -> None:
    text = sample(stop=["xyz"])
    assert text.add(list(b"axy")) == ("a", None)
    assert text.add(list(b"b")) == ("xyb", None)
    assert text.add(list(b"x")) == ("", None)
    assert text.finish() == ("x", None)


def test_a_stop_string_is_told() -> None:
    text = sample(stop=["yz", "q"])
    assert text.add(list(b"xyzq")) == ("x", "yz")


def test_special_tokens() -> None:
    assert sample().add([258, 97]) == ("a", None)
    assert sample(skip_special_tokens=False).add([258, 97]) == ("<start>a", None)


def test_without_a_tokenizer_there_is_no_text() -> None:
    request, _ = request_for()
    text = SampleText(None, request)
    text.heal([98, 97])
    assert text.add([97, 98]) == text.finish() == ("", None)
