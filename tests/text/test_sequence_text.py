"""The text of a sequence goes on from a text prompt, and stands alone after messages."""

from __future__ import annotations

from typing import Any, cast

from asyncgen.text.hidden_stops import make_stops
from asyncgen.text.sequence_text import SequenceText
from streamers import StopStrings
from tests.cases import for_each
from tests.doubles.models import byte_tokenizer
from tests.engine.making import request_for


def text_of(prompt: Any = "abc", **given: Any) -> SequenceText:
    """The text of a request."""
    request, _ = request_for(prompt, **given)
    return request.text_of(0, byte_tokenizer())


def test_text_completes_a_character_of_the_prompt() -> None:
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


def test_add_returns_the_matched_stop_string() -> None:
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


@for_each(
    ("stop", "ids", "shown", "met"),
    [
        (["<start>"], [97, 258, 98], "a", "<start>"),
        (["<start>\nb"], [97, 258, 10, 98, 99], "a", "<start>\nb"),
        (["a<start>"], [120, 97, 97, 258], "xa", "a<start>"),
        (["<start><start>"], [258, 97, 258, 258, 98], "a", "<start><start>"),
        (["b", "<start>"], [97, 98, 258], "a", "b"),
        (["<start>"], [*b"a<start>b"], "a", "<start>"),
        (["<start>x"], [97, 258, 98], "ab", None),
        (["q<start>"], [97, 113, 258], "a", "q<start>"),
    ],
)
def test_stop_strings_meet_special_tokens_that_the_text_hides(
    stop: list[str], ids: list[int], shown: str, met: str | None
) -> None:
    for pieces in ([ids], [[token] for token in ids]):
        text, found, end = text_of(stop=stop), "", None
        for piece in pieces:
            new, end = text.add(piece)
            found += new
            if end is not None:
                break
        if end is None:
            rest, end = text.finish()
            found += rest
        assert (found, end) == (shown, met)


def test_stop_strings_without_special_tokens_are_searched_in_plain_text() -> None:
    for given in ({"stop": ["<middle>"]}, {"stop": ["<start>"], "skip_special_tokens": False}):
        request, _ = request_for("abc", **given)
        assert type(request.stops) is StopStrings
    text = text_of(stop=["<start>b"], skip_special_tokens=False)
    assert text.add([97, 258, 98]) == ("a", "<start>b")


class Plain:
    """A reader of answers that passes all text."""

    in_reasoning = is_over = False

    def put(self, text: str) -> str:
        return text


def test_stop_strings_meet_special_tokens_that_a_reader_of_answers_does_not_see() -> None:
    tokenizer = byte_tokenizer()
    text = SequenceText(
        tokenizer,
        stops=make_stops(["<start>"], tokenizer, hides=True),
        parser=cast("Any", Plain()),
        hidden=frozenset({258}),
    )
    assert text.add([97]) == ("a", None)
    assert text.add([258, 98]) == ("", "<start>")
