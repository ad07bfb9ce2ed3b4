"""A terminal of the few control sequences that rich writes: what stands on it, and above it."""

from __future__ import annotations

import re

TOKEN = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


class Screen:
    """Rows of a window over a scrollback that cannot be changed any more."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.scrollback: list[str] = []
        self.rows = [""] * height
        self.row = 0
        self.column = 0

    def write(self, text: str) -> None:
        """Carry out text and control sequences."""
        end = 0
        for match in TOKEN.finditer(text):
            assert match.start() == end, text[end : match.start()]
            end = match.end()
            self._carry_out(match)

    def lines(self) -> list[str]:
        """Everything from the first line to the cursor's."""
        return [*self.scrollback, *self.rows[: self.row + 1]]

    def _carry_out(self, match: re.Match[str]) -> None:
        text, arguments, command = match.group(), match.group(1), match.group(2)
        if command == "A":
            assert self.row >= int(arguments or 1), "the cursor cannot reach the scrollback"
            self.row -= int(arguments or 1)
        elif command == "K":
            assert arguments == "2"
            self.rows[self.row] = ""
        elif command in ("m", "h", "l"):
            return
        elif command is not None:
            raise AssertionError(f"unknown sequence {text!r}")
        elif text == "\r":
            self.column = 0
        elif text == "\n":
            self._line_feed()
        else:
            self._put(text)

    def _put(self, text: str) -> None:
        for character in text:
            if self.column == self.width:
                self._line_feed()
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
            self.column += 1

    def _line_feed(self) -> None:
        self.column = 0
        if self.row < self.height - 1:
            self.row += 1
            return
        self.scrollback.append(self.rows.pop(0))
        self.rows.append("")
