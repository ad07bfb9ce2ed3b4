"""Printing: what the reference prints, and rows with their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamers.text_streamer import TextStreamer

if TYPE_CHECKING:
    import pytest

    from tests.streamers.cases import Case


def encode(case: Case, text: str) -> list[int]:
    return case.tokenizer.encode(text, add_special_tokens=False).ids


def test_words_are_printed_whole_and_a_newline_at_the_end(
    byte_level: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    streamer = TextStreamer(byte_level.tokenizer, skip_prompt=True)
    streamer.put([encode(byte_level, "not shown")])
    out = []
    for word in ("one", " two", " three"):
        for token_id in encode(byte_level, word):
            streamer.put([token_id])
        out.append(capsys.readouterr().out)
    streamer.end()
    out.append(capsys.readouterr().out)
    assert out == ["", "one ", "two ", "three\n"]


def test_rows_are_labelled_where_they_change(
    byte_level: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    streamer = TextStreamer(byte_level.tokenizer)
    streamer.put([encode(byte_level, "x a"), encode(byte_level, "x b")])
    streamer.put([[byte_level.tokenizer.encode("\n").ids[0]], []])
    streamer.end()
    assert capsys.readouterr().out == "[0] x \n[1] x \n[0] a\n[1] b\n"


def test_the_hook_may_be_overridden(byte_level: Case) -> None:
    seen: list[tuple[str, bool]] = []

    class Own(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            seen.append((text, stream_end))

    streamer = Own(byte_level.tokenizer)
    streamer.put([encode(byte_level, "one two")])
    streamer.end()
    assert seen == [("one ", False), ("two", True)]
