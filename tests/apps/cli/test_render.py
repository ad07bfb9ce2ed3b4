from __future__ import annotations

import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from asyncgen_apps.cli.render import MarkdownView, PlainView, error_line, listing, note, printable
from tests.apps.cli.screen import Screen
from tests.cases import for_each, some


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def console(height: int = 10) -> Console:
    return Console(
        file=Terminal(), force_terminal=True, width=40, height=height, legacy_windows=False
    )


def written(target: Console) -> str:
    file = target.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def show(text: str, height: int = 10, size: int = 5, every: int = 2) -> Screen:
    """Stream ``text`` into a view and replay what it wrote on a screen."""
    target = console(height)
    view = MarkdownView(target)
    for number, start in enumerate(range(0, len(text), size)):
        view.feed(text[start : start + size])
        if number % every == 0:
            view.refresh()
    view.close()
    screen = Screen(width=40, height=height)
    screen.write(written(target))
    return screen


def test_plain_text_is_written_as_it_comes_and_ended_by_a_line() -> None:
    out = io.StringIO()
    view = PlainView(out)
    view.feed("one")
    assert out.getvalue() == "one"
    view.feed("")
    view.feed(" \x1b[31mtwo")
    view.close()
    assert out.getvalue() == "one \x1b[31mtwo\n"


def test_an_empty_answer_writes_nothing_and_a_line_end_is_not_doubled() -> None:
    out = io.StringIO()
    PlainView(out).close()
    assert out.getvalue() == ""
    view = PlainView(out)
    view.feed("one\n")
    view.close()
    assert out.getvalue() == "one\n"


def test_a_terminal_gets_no_control_characters() -> None:
    out = Terminal()
    PlainView(out).feed("\x1b]0;title\x07\x9b2J\tok\r\n")
    assert out.getvalue() == "�]0;title��2J\tok\n"


def _without_colours(text: str) -> str:
    return re.sub("\x1b\\[[0-9;]*m", "", text)


def test_a_terminal_shows_first_what_a_text_continues() -> None:
    out = Terminal()
    view = PlainView(out, "One \x1b[31mday\n")
    assert out.getvalue() == ""  # an error comes instead, where there is one
    view.refresh()
    view.refresh()
    view.close()
    assert _without_colours(out.getvalue()) == "One �[31mday\n"
    out = Terminal()
    for piece in ("", ", there"):
        view = PlainView(out, "Once [bold] :fox:")
        view.feed(piece)
        view.close()
    shown = _without_colours(out.getvalue())
    assert shown == "Once [bold] :fox:\nOnce [bold] :fox:, there\n"
    plain = io.StringIO()
    view = PlainView(plain, "Once")
    view.feed(", there")
    view.close()
    assert plain.getvalue() == ", there\n"


@given(st.text())
def test_printable_text_has_no_control_characters_but_tab_and_newline(text: str) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", printable(text))


STATISTICS = "131 tokens · first after 250 ms · 42.0 tokens/s · prompt 7 tokens · complete"
ROWS = [
    ("temperature", "0.7", "command line", "Below 1 safer, above 1 bolder; 0 takes the best."),
    ("no_repeat_ngram_size", "0", "library", "Never repeat a run of this many tokens."),
]


@pytest.mark.parametrize("width", [24, 40, 80, 120])
def test_lines_break_between_words_only(width: int) -> None:
    out = io.StringIO()
    target = Console(file=out, force_terminal=True, color_system=None, width=width)
    note(target, STATISTICS)
    listing(target, ROWS)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = {word for text in (STATISTICS, *ROWS[0], *ROWS[1]) for word in text.split()}
    assert {word for line in lines for word in line.split()} == words


def test_a_note_that_no_terminal_reads_is_one_line() -> None:
    out = io.StringIO()
    note(Console(file=out, width=20), STATISTICS)
    assert out.getvalue() == STATISTICS + "\n"


def test_an_error_is_one_line() -> None:
    target = console()
    error_line(target, "first [bold]line[/bold]\n  second " + "x" * 100)
    assert written(target).count("\n") == 1
    assert "[bold]" in written(target)


@for_each("every", [1, 3, 1000])
@pytest.mark.parametrize("height", some([6, 10, 50], 1))
def test_a_long_answer_is_in_the_scrollback_exactly_once(height: int, every: int) -> None:
    paragraphs = [f"Paragraph {number} has words." for number in range(30)]
    items = [f"- item {number}" for number in range(30)]
    code = ["```", *(f"line {number}" for number in range(30)), "```"]
    text = "\n\n".join(paragraphs) + "\n\n" + "\n".join(items) + "\n\n" + "\n".join(code) + "\n"
    lines = show(text, height, every=every).lines()
    for number in range(30):
        for mark in (f"Paragraph {number} has", f"• item {number}", f"line {number}"):
            assert sum(re.search(rf"{mark}\b", line) is not None for line in lines) == 1, mark
    shown = [line.strip() for line in lines if line.strip()]
    assert shown == [
        *paragraphs,
        *(f"• item {number}" for number in range(30)),
        *(f"line {number}" for number in range(30)),
    ]


def test_markdown_is_rendered_and_blocks_stand_apart() -> None:
    lines = show("Some **bold** text.\n\n- a\n- b\n\nThe end").lines()
    assert [line.rstrip() for line in lines] == [
        "Some bold text.",
        "",
        " • a",
        " • b",
        "",
        "The end",
        "",
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["one ", "two\n", "\n", "- x\n", "```\n", "# h\n"]), max_size=20))
def test_final_display_does_not_depend_on_how_text_was_split(pieces: list[str]) -> None:
    text = "".join(pieces)
    piecemeal = show(text, height=6, size=2, every=1).lines()
    assert " ".join(piecemeal).split() == " ".join(show(text, size=10**6).lines()).split()


def test_the_cursor_is_back_after_the_answer() -> None:
    target = console()
    view = MarkdownView(target)
    view.refresh()
    view.feed("text")
    view.refresh()
    view.close()
    assert written(target).rfind("\x1b[?25h") > written(target).rfind("\x1b[?25l")


def test_an_empty_answer_leaves_nothing() -> None:
    assert [line for line in show("").lines() if line.strip()] == []
