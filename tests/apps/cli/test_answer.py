from __future__ import annotations

import signal
from dataclasses import replace

import anyio
import pytest

from asyncgen import Completion, Timing
from asyncgen_apps.cli.answer import Interrupts, show_answer, with_interrupts
from asyncgen_apps.cli.statistics import about, seconds, statistics_line
from tests.apps.cli.doubles import Answer, ScriptedStream, completion

pytestmark = pytest.mark.anyio


class RecordingView:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.refreshes = 0
        self.closed = 0

    def feed(self, piece: str) -> None:
        assert not self.closed
        self.pieces.append(piece)

    def refresh(self) -> None:
        assert not self.closed
        self.refreshes += 1

    def close(self) -> None:
        self.closed += 1


async def _shown(stream: ScriptedStream, view: RecordingView) -> tuple[Completion, Interrupts]:
    """Show an answer as the commands do."""

    async def show(interrupts: Interrupts) -> tuple[Completion, Interrupts]:
        return await show_answer(stream, view, interrupts), interrupts

    return await with_interrupts(show)


async def test_every_piece_arrives_and_the_result_is_returned() -> None:
    stream, view = ScriptedStream(Answer(("a", "b", "c"))), RecordingView()
    result = await show_answer(stream, view, Interrupts())
    assert view.pieces == ["a", "b", "c"]
    assert view.closed == 1 and view.refreshes > 0
    assert result.text == "abc"
    assert stream.is_closed


async def test_an_error_is_raised_as_it_is_and_the_view_is_closed() -> None:
    stream, view = ScriptedStream(Answer(("a",), ValueError("broken"))), RecordingView()
    with pytest.raises(ValueError, match="broken"):
        await show_answer(stream, view, Interrupts())
    assert view.pieces == ["a"]
    assert view.closed == 1
    assert stream.is_closed


async def test_the_first_interrupt_stops_the_answer_and_keeps_it() -> None:
    stream, view = ScriptedStream(Answer(("a",), interrupts=1)), RecordingView()
    result, interrupts = await _shown(stream, view)
    assert result.finish_reason == "cancelled"
    assert result.text == "a"
    assert interrupts.count == 1 and not interrupts.wants_to_leave


async def test_the_second_interrupt_leaves_an_answer_that_does_not_stop() -> None:
    stream, view = ScriptedStream(Answer(("a",), interrupts=2)), RecordingView()
    result, interrupts = await _shown(stream, view)
    assert interrupts.wants_to_leave
    assert result.text == "a"
    assert stream.is_closed and view.closed == 1


async def test_an_interrupt_between_two_answers_is_kept_for_the_next() -> None:
    """A Ctrl-C that comes a moment too late ends nothing but what comes next."""

    async def work(interrupts: Interrupts) -> Completion:
        await show_answer(ScriptedStream(Answer()), RecordingView(), interrupts)
        signal.raise_signal(signal.SIGINT)
        while not interrupts.count:
            await anyio.lowlevel.checkpoint()
        waiting = ScriptedStream(Answer(("a",), waits=True))
        result = await show_answer(waiting, RecordingView(), interrupts)
        assert not interrupts.wants_to_leave and not interrupts.take_pending()
        return result

    assert (await with_interrupts(work)).finish_reason == "cancelled"


async def test_errors_of_the_work_are_raised_unchanged() -> None:
    async def work(interrupts: Interrupts) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await with_interrupts(work)


async def test_interrupts_are_ordinary_again_afterwards() -> None:
    await _shown(ScriptedStream(Answer(interrupts=1)), RecordingView())
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    with pytest.raises(KeyboardInterrupt):
        signal.default_int_handler(signal.SIGINT, None)


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0123, "12 ms"), (0.25, "250 ms"), (3.14159, "3.14 s"), (90, "1.5 min")]
)
def test_durations_have_a_fitting_unit(value: float, shown: str) -> None:
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.2, "1 s"), (49.6, "50 s"), (61, "1 min"), (3599, "1 h 0 min"), (8000, "2 h 13 min")],
)
def test_an_estimate_has_no_more_digits_than_it_means(value: float, shown: str) -> None:
    assert about(value) == shown


def test_the_line_says_tokens_times_speed_and_reason() -> None:
    assert statistics_line(completion("x")) == (
        "3 tokens · first after 250 ms · 42.0 tokens/s · prompt 7 tokens · complete"
    )


def test_statistics_line_omits_unmeasured_figures() -> None:
    stopped = replace(completion("", "cancelled", 0), timing=Timing(0.0, None, 0.1, None))
    assert statistics_line(stopped) == "0 tokens · prompt 7 tokens · stopped"
