"""The whole chat in a pseudo-terminal: keys in, screen out."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from tests.apps.cli.screen import Screen
from tests.cases import for_each

if TYPE_CHECKING:
    from types import TracebackType

ROOT = Path(__file__).parents[3]
PROMPT = r"\x1b\[\?2004h"
"""Bracketed paste is switched on when, and only when, a line begins to be read."""
SCRIPT = """
import sys
from asyncgen_apps.cli import source
from asyncgen_apps.cli import main
from tests.apps.cli.doubles import Answer, ScriptedLLM
long = Answer([f"Paragraph {n} of the answer.\\n\\n" for n in range(40)])
llm = ScriptedLLM([Answer(("Hello ", "**there**.")), Answer(("Half",), waits=True), long])
source.open_llm = llm.open
sys.argv = ["asyncgen", "chat", *sys.argv[1:]]
main()
"""
TALKS = SCRIPT.replace(
    'Answer(("Hello', 'Answer(("A paragraph " * 20,), waits=True), Answer(("Hello'
)
"""The first answer is one paragraph of several lines, and goes on until it is stopped."""
CONTINUES = SCRIPT.replace('"chat"', '"generate"').replace("Hello", ", there")
CANCELLED = "stopped"
LEAVES = "Ctrl-C once more leaves"


class Terminal:
    """A program in a terminal of 80 × 24, or of another width."""

    def __init__(self, code: str, state: Path, *arguments: str, width: int = 80) -> None:
        master, slave = pty.openpty()
        self._master = master
        self._name = os.ttyname(slave)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env={
                **os.environ,
                "TERM": "xterm-256color",
                "COLUMNS": str(width),
                "LINES": "24",
                "XDG_STATE_HOME": str(state),
                "PROMPT_TOOLKIT_NO_CPR": "1",
            },
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._master)

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        """Read until something new matches; return everything new up to there."""
        deadline = time.monotonic() + seconds
        while (match := re.search(pattern, self.shown)) is None:
            if not select.select([self._master], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError(f"no {pattern!r} in {self.shown!r}")
            try:
                self.shown += os.read(self._master, 65536).decode("utf-8", "replace")
            except OSError:
                raise AssertionError(f"ended without {pattern!r}: {self.shown!r}") from None
        before, self.shown = self.shown[: match.end()], self.shown[match.end() :]
        return before

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def wait_until_typed(self, count: int) -> None:
        """Wait until so many keys wait to be read: the system passes them on when it has time."""
        terminal = os.open(self._name, os.O_RDWR | os.O_NOCTTY)
        deadline = time.monotonic() + 60
        try:
            while _count_typed(terminal) != count:
                assert time.monotonic() < deadline
                time.sleep(0.005)
        finally:
            os.close(terminal)

    def interrupt(self) -> None:
        """Send what Ctrl-C sends while no line is read."""
        self._process.send_signal(2)

    def end(self) -> int:
        """Wait for the program to end."""
        while True:
            try:
                if not os.read(self._master, 65536):
                    break
            except OSError:
                break
        return self._process.wait(timeout=60)


def _count_typed(terminal: int) -> int:
    """Count the keys that wait to be read."""
    found = fcntl.ioctl(terminal, termios.FIONREAD, bytes(4))
    return int.from_bytes(found, sys.byteorder)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("leave", ["\x03", "\x04", "/exit\r"])
def test_a_chat_from_the_first_key_to_the_last(tmp_path: Path, leave: str) -> None:
    with Terminal(SCRIPT, tmp_path) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Hi\r")
        assert "there" in terminal.wait_for("tokens/s")
        terminal.wait_for(PROMPT)
        terminal.type("/hepl\r")
        terminal.wait_for(r"did you mean /help\?")
        terminal.wait_for(PROMPT)
        terminal.type("More\r")
        terminal.wait_for("Half")
        terminal.interrupt()
        terminal.wait_for(CANCELLED)
        terminal.wait_for(PROMPT)
        terminal.type("A lot\r")
        long = terminal.wait_for("complete")
        assert "Paragraph 39" in long
        terminal.wait_for(PROMPT)
        terminal.type(leave)
        if leave == "\x03":
            terminal.wait_for(LEAVES)
            terminal.wait_for(PROMPT)
            terminal.type(leave)
        assert terminal.end() == 0
    history = (tmp_path / "asyncgen/chat_history").read_text()
    assert "A lot" in history
    kept = tmp_path / "asyncgen/last_chat.json"
    assert "Paragraph 39" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_late_interrupt_loses_nothing(tmp_path: Path) -> None:
    """Right behind an answer, when it was meant for that, and in the middle of a line."""
    with Terminal(SCRIPT, tmp_path) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Hi\r")
        terminal.wait_for("there")
        terminal.interrupt()
        terminal.wait_for(f"{LEAVES}|{CANCELLED}")
        terminal.wait_for(PROMPT)
        terminal.type("/stats\r")  # what was typed stands between the two
        terminal.wait_for(PROMPT)
        terminal.type("/exi\x03")
        terminal.wait_for(LEAVES)
        terminal.wait_for(PROMPT)
        terminal.type("/stats\r")
        terminal.wait_for(PROMPT)
        terminal.interrupt()  # a signal while a line is read
        terminal.wait_for(LEAVES)
        terminal.wait_for(PROMPT)
        terminal.type("/set seed 3\r")
        terminal.wait_for(re.escape("seed = 3 (/set)"))
        terminal.wait_for(PROMPT)
        terminal.type("\x04")
        assert "chat --continue" in terminal.wait_for("with this conversation")
        assert terminal.end() == 0
    with Terminal(SCRIPT, tmp_path, "--continue", "--no-save", width=40) as terminal:
        terminal.wait_for("going on behind 2 messages")
        terminal.wait_for(PROMPT)
        terminal.type("/set seed\r")
        terminal.wait_for(re.escape("seed = 3 (saved chat)"))
        terminal.wait_for(PROMPT)
        terminal.type("/undo\r")
        terminal.wait_for("taken back: Hi")
        terminal.wait_for(PROMPT)
        terminal.type("/exit\r")
        assert terminal.end() == 0
    assert "there" in (tmp_path / "asyncgen/last_chat.json").read_text()
    assert "/undo" not in (tmp_path / "asyncgen/chat_history").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_keys_that_are_pressed_during_an_answer_do_not_show(tmp_path: Path) -> None:
    with Terminal(TALKS, tmp_path) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("Hi\r")
        terminal.wait_for(r"\x1b\[\?2004l")  # the line is read
        shown = terminal.wait_for(r"(A\s+paragraph\s+){20}")
        terminal.type("mo\x03re")
        terminal.wait_until_typed(4)  # Ctrl-C is no key, and throws nothing away
        terminal.interrupt()
        shown += terminal.wait_for(CANCELLED)
        screen = Screen(80, 24)
        screen.write(shown[shown.index("\x1b[?25l") :])  # what rich draws
        lines = [line.strip() for line in screen.lines() if line.strip()]
        assert " ".join(lines).partition(" 1 token ")[0] == ("A paragraph " * 20).strip()
        terminal.wait_for(PROMPT)
        terminal.wait_for("more")  # waits for the next line
        terminal.type("\x03")
        terminal.type("/exit\r")
        assert terminal.end() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@for_each("options", [(), ("--no-stream",)])
def test_a_continuation_stands_behind_its_prompt(options: tuple[str, ...], tmp_path: Path) -> None:
    with Terminal(CONTINUES, tmp_path, "Once upon a time", *options) as terminal:
        shown = terminal.wait_for(r"tokens/s")
        assert terminal.end() == 0
    assert "\x1b[2mOnce upon a time\x1b[0m, there **there**.\r\n" in shown
