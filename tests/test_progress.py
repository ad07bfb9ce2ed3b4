"""Tests of `asyncgen.progress`."""

from __future__ import annotations

import io
import threading

import pytest

from asyncgen.progress import Progress


class Terminal(io.StringIO):
    """Text that claims to be shown to somebody."""

    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(stream: io.StringIO, seconds: float, *, enabled: bool = True) -> str:
    """Load two halves, each taking some seconds; return what was written."""
    clock = Clock()
    with Progress(100, "loading", enabled=enabled, stream=stream, clock=clock) as progress:
        for _ in range(2):
            clock.now += seconds
            progress.advance(50)
    return stream.getvalue()


def test_slow_load_shows_a_bar() -> None:
    assert "loading" in run(Terminal(), 2.0)


def test_quick_load_shows_nothing() -> None:
    assert run(Terminal(), 0.4) == ""


def test_nothing_without_a_terminal() -> None:
    assert run(io.StringIO(), 2.0) == ""


def test_nothing_when_switched_off() -> None:
    assert run(Terminal(), 2.0, enabled=False) == ""


def test_closed_stream() -> None:
    stream = Terminal()
    stream.close()
    with Progress(1, "loading", stream=stream, clock=lambda: 0.0) as progress:
        progress.advance(1)


def test_no_stream_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    with Progress(1, "loading") as progress:
        progress.advance(1)


def test_bar_goes_away_after_an_error() -> None:
    stream, clock = Terminal(), Clock()
    with (
        pytest.raises(ValueError, match="broken"),
        Progress(2, "loading", stream=stream, clock=clock) as progress,
    ):
        clock.now = 5.0
        progress.advance(1)
        raise ValueError("broken")
    assert stream.getvalue().rstrip(" ").endswith("\r")


def test_no_thread_stays_behind() -> None:
    before = set(threading.enumerate())
    run(Terminal(), 2.0)
    assert set(threading.enumerate()) == before


def test_a_bar_that_counts_something_else() -> None:
    stream, clock = Terminal(), Clock()
    with Progress(4, "solving", unit="request", stream=stream, clock=clock) as progress:
        clock.now = 2.0
        progress.advance(1)
    assert "1/4" in stream.getvalue() and "request" in stream.getvalue()
