"""Show an answer while it arrives: as plain text, or as growing Markdown."""

from __future__ import annotations

import re
import sys
from typing import IO, TYPE_CHECKING, Protocol

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from asyncgen_apps.cli.markdown import GrowingMarkdown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import ConsoleOptions, RenderResult


# Characters that move a cursor, change a colour or ring: C0 but tab and newline, DEL, C1.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

REFRESH_SECONDS = 0.08

_EXPLANATION = 30
"""Least width of a column of explanations."""


class View(Protocol):
    """Display of an answer."""

    def feed(self, piece: str) -> None:
        """Take the next piece of text."""

    def refresh(self) -> None:
        """Bring the screen up to date; called every ``REFRESH_SECONDS``."""

    def close(self) -> None:
        """Leave the screen in its final state, at the end of the answer."""


def printable(text: str) -> str:
    """Replace control characters: the text of a model must not control the terminal."""
    return CONTROL.sub("�", text.replace("\r\n", "\n"))


def error_line(console: Console, text: str) -> None:
    """Print an error as one line, without wrapping and markup."""
    line = Text("error: ", style="bold red").append(" ".join(text.split()), style="not bold")
    console.print(line, soft_wrap=True)


def note(console: Console, text: str) -> None:
    """Print a note beside the answers; a terminal gets it wrapped between words."""
    console.print(Text(text, style="dim"), soft_wrap=not console.is_terminal)


def listing(console: Console, rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns, the last one wrapped between words; below each other if narrow.

    Args:
        console: Console to print on.
        rows: All of the same length; the last column explains the others.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths[:-1]) + 2 * len(widths) + _EXPLANATION <= console.width:
        grid = Table.grid(padding=(0, 2, 0, 0))
        for width in widths[:-1]:
            grid.add_column(width=width, no_wrap=True)
        for row in rows:
            grid.add_row(*(Text(cell, style="dim") for cell in row))
        console.print(grid)
        return
    for *names, text in rows:
        console.print(Text("  ".join(names), style="dim"))
        console.print(Padding(Text(text, style="dim"), (0, 0, 0, 4), expand=False))


class PlainView:
    """View that writes each piece as it comes, and a final line end if there is none."""

    def __init__(self, out: IO[str] | None = None, prompt: str = "") -> None:
        """Begin with nothing.

        Args:
            out: Where to write; standard output by default.
            prompt: What the text continues: a terminal shows it first, dimmed.
        """
        self._out = sys.stdout if out is None else out
        self._is_terminal = self._out.isatty()
        self._prompt = prompt if self._is_terminal else ""
        self._last = "\n"

    def feed(self, piece: str) -> None:
        """Write and flush; control characters are replaced for a terminal only."""
        self.refresh()
        if piece:
            self._out.write(printable(piece) if self._is_terminal else piece)
            self._out.flush()
            self._last = piece[-1]

    def refresh(self) -> None:
        """Show the prompt, once; all other text is written already."""
        if self._prompt:
            prompt = Text(printable(self._prompt), style="dim")
            self._last, self._prompt = self._prompt[-1], ""
            Console(file=self._out).print(prompt, end="", soft_wrap=True)
            self._out.flush()

    def close(self) -> None:
        """End the last line."""
        if self._last != "\n":
            self._out.write("\n")
            self._out.flush()


class MarkdownView:
    """View that prints final blocks once, and redraws only the block that still grows.

    Printed blocks scroll away as usual. The redrawn block never exceeds the screen, because a
    terminal cannot take back lines that have scrolled off.
    """

    def __init__(self, console: Console) -> None:
        """Show a spinner until the first text."""
        self._console = console
        self._growing = GrowingMarkdown()
        self._printed_any = False
        self._changed = False
        self._live = Live(
            Spinner("dots", style="dim"),
            console=console,
            auto_refresh=False,
            transient=True,
            vertical_overflow="crop",
        )
        self._live.start()

    def feed(self, piece: str) -> None:
        """Take text; the screen follows at the next refresh."""
        settled = self._growing.feed(printable(piece))
        if settled.strip():
            self._print(settled)
        self._changed = True

    def refresh(self) -> None:
        """Redraw the growing block, or turn the spinner."""
        if self._growing.open.strip():
            if self._changed:
                growing = _Block(self._growing.open, space_before=self._printed_any, crop=True)
                self._live.update(growing, refresh=True)
        elif not self._printed_any:
            self._live.refresh()
        self._changed = False

    def close(self) -> None:
        """Replace the growing block by its final form, below everything printed before."""
        rest = self._growing.finish()
        if rest.strip():
            self._print(rest)
        self._live.update(Text(""))
        self._live.stop()

    def _print(self, block: str) -> None:
        """Print final blocks, one empty line after the earlier ones.

        The live region below changes to the open rest in the same write, so that no text shows
        twice or is missing.
        """
        settled = _Block(block, space_before=self._printed_any)
        self._printed_any = True
        self._live.update(_Block(self._growing.open, space_before=True, crop=True))
        self._console.print(settled, end="")


class _Block:
    """Markdown without the empty lines that rich puts around some kinds of blocks.

    Args:
        text: One block or several.
        space_before: True begins with an empty line.
        crop: True shows only the last lines that fit on the screen.
    """

    def __init__(self, text: str, *, space_before: bool, crop: bool = False) -> None:
        self._text = text
        self._space_before = space_before
        self._crop = crop

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._text.strip():
            return
        lines = console.render_lines(Markdown(self._text.strip("\n")), options, pad=False)
        shown = [number for number, line in enumerate(lines) if _has_text(line)]
        lines = lines[shown[0] : shown[-1] + 1] if shown else []
        if self._space_before:
            lines.insert(0, [])
        # One line stays free: a newline on the last row would scroll the region away.
        for line in lines[-max(1, console.height - 2) :] if self._crop else lines:
            yield from line
            yield Segment.line()


def _has_text(line: list[Segment]) -> bool:
    """Tell whether a rendered line has visible text."""
    return any(segment.text.strip() for segment in line)
