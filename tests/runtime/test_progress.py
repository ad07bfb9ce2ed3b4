"""Tests of `asyncgen.runtime.progress`."""

from __future__ import annotations

import io
import logging
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.errors import InvalidRequestError
from asyncgen.llm.llm import LLM, AsyncLLM
from asyncgen.reference.auto import AutoModelForCausalLM, AutoTokenizer
from asyncgen.reference.load_model import load_model, load_tokenizer
from asyncgen.runtime.progress import Progress
from tests.cases import for_each

if TYPE_CHECKING:
    from asyncgen.runtime.progress import ProgressOption


class Replaced(io.StringIO):
    """A replacement of stderr by a terminal application: it says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return -1


class Terminal(Replaced):
    """Text on a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self._ends = os.openpty()

    def fileno(self) -> int:
        return self._ends[1]

    def __del__(self) -> None:
        for end in self._ends:
            os.close(end)


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(stream: io.StringIO, seconds: float, *, progress: ProgressOption = None) -> str:
    """Load two halves, each taking some seconds; return what was written."""
    clock = Clock()
    with Progress(100, "loading", progress=progress, stream=stream, clock=clock) as bar:
        for _ in range(2):
            clock.now += seconds
            bar.advance(50)
    return stream.getvalue()


def test_slow_load_shows_a_bar() -> None:
    assert "loading" in run(Terminal(), 2.0)


def test_quick_load_shows_nothing() -> None:
    assert run(Terminal(), 0.4) == ""


def test_no_progress_without_a_terminal() -> None:
    assert run(io.StringIO(), 2.0) == ""


def test_no_progress_over_a_terminal_application() -> None:
    assert run(Replaced(), 2.0) == ""


def test_a_stderr_that_lacks_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", object())
    with Progress(1, "loading", clock=iter([0.0, 0.0, 5.0, 10.0]).__next__) as progress:
        progress.advance(1)


def test_progress_function_is_called_and_nothing_printed() -> None:
    told: list[tuple[str, int, int]] = []
    assert run(Terminal(), 2.0, progress=lambda *each: told.append(each)) == ""
    assert told == [("loading", 0, 100), ("loading", 50, 100), ("loading", 100, 100)]


def test_a_call_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    run(Terminal(), 2.0, progress=fail)
    assert "`progress` raised" in caplog.text and "ZeroDivisionError" in caplog.text


def test_a_filter_of_the_log_that_raises_stops_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[BaseException] = []

    def fail(*_: object) -> bool:
        raise raised[-1]

    def runs(error: BaseException) -> None:
        raised.append(error)
        run(Terminal(), 2.0, progress=fail)
        raised.clear()

    monkeypatch.setattr(logging.getLogger("asyncgen.progress"), "filters", [fail])
    for error in (ZeroDivisionError(), GeneratorExit()):
        runs(error)
    for ending in (SystemExit(), KeyboardInterrupt()):  # they end the main thread alone
        thread = threading.Thread(target=runs, args=(ending,))
        thread.start()
        thread.join()
        assert not raised


def test_every_loading_function_reports_progress() -> None:
    told: list[tuple[str, int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        assert 0 <= done <= total
        told.append((what, done, total))

    with LLM("demo", progress=progress, prefill_chunk_size=16, max_running=1) as llm:
        assert {what for what, *_ in told} == {"loading weights"}
        assert told[0][1] == 0 and told[-1][1] == told[-1][2] > 1_000_000
        told.clear()
        llm.generate("short", max_new_tokens=1)
        assert told == []
        llm.generate(list(range(2, 50)), max_new_tokens=3)
        assert told == [("prefill", done, 48) for done in (16, 32, 48)]
        told.clear()
        llm.generate(["a", "b"], max_new_tokens=1)
        assert told == [("answering prompts", done, 2) for done in (0, 1, 2)]
    for load in (load_model, AutoModelForCausalLM.from_pretrained):
        told.clear()
        load("demo", progress=progress)
        assert told[-1] == ("loading weights", told[-1][2], told[-1][2])
    told.clear()
    AutoTokenizer.from_pretrained("demo", progress=progress)  # nothing is downloaded
    assert told == []


@for_each("value", [True, 1, "yes"])
@for_each("door", [LLM, AsyncLLM, load_model, load_tokenizer])
def test_wrong_progress_values_are_refused(door: Any, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"`progress` is .*None \(automatic\), False"):
        door("demo", progress=value)


def test_no_progress_when_switched_off() -> None:
    assert run(Terminal(), 2.0, progress=False) == ""


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


def test_no_thread_is_left_running() -> None:
    before = set(threading.enumerate())
    run(Terminal(), 2.0)
    assert set(threading.enumerate()) == before


def test_a_bar_that_counts_something_else() -> None:
    stream, clock = Terminal(), Clock()
    with Progress(4, "solving", unit="request", stream=stream, clock=clock) as progress:
        clock.now = 2.0
        progress.advance(1)
    assert "1/4" in stream.getvalue() and "request" in stream.getvalue()
