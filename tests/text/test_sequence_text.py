"""The text of a sequence goes on from a text prompt, and stands alone after messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.doubles.models import byte_tokenizer
from tests.engine.making import request_for

if TYPE_CHECKING:
    from asyncgen.text.sequence_text import SequenceText


def text_of(prompt: Any = "abc", **given: Any) -> SequenceText:
    """The text of a request."""
    request, _ = request_for(prompt, **given)
    return request.text_of(0, byte_tokenizer())


def test_text_goes_on_from_the_prompt() -> None:
    text = text_of([97, 0xC3])
    assert text.add([0xA9, 98]) == ("éb", None)
    assert text.finish() == ("", None)


def test_an_answer_to_messages_stands_alone() -> None:
    text = text_of([{"role": "user", "content": "hi"}])
    # The template's end cannot complete a character: the byte is invalid by itself.
    assert text.add([0xA9])[0] + text.finish()[0] == "\ufffd"


def test_the_rest_is_an_incomplete_character() -> None:
    text = text_of()
    assert text.add([0xE6, 0xBC]) == ("", None)
    assert text.finish() == ("\ufffd", None)


def test_a_possible_beginning_of_a_stop_string_is_held_back() -> None:
    text = text_of(stop=["xyz"])
    assert text.add(list(b"axy")) == ("a", None)
    assert text.add(list(b"b")) == ("xyb", None)
    assert text.add(list(b"x")) == ("", None)
    assert text.finish() == ("x", None)


def test_a_stop_string_is_told() -> None:
    text = text_of(stop=["yz", "q"])
    assert text.add(list(b"xyzq")) == ("x", "yz")


def test_special_tokens() -> None:
    assert text_of().add([258, 97]) == ("a", None)
    assert text_of(skip_special_tokens=False).add([258, 97]) == ("<start>a", None)


def test_without_a_tokenizer_there_is_no_text() -> None:
    request, _ = request_for()
    text = request.text_of(0, None)
    text.heal([98, 97], "")
    assert text.add([97, 98]) == text.finish() == ("", None)
