"""A blocking reader: gets everything, learns of every end, and stops the producer by leaving."""

from __future__ import annotations

import gc
import queue
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from streamers import broadcast, iterator_streamer, readable_streamer
from streamers.errors import ProducerDiedError, ProducerError
from streamers.iterator_streamer import TextIteratorStreamer
from tests.streamers.producers import Script, ids_of

if TYPE_CHECKING:
    from tests.streamers.cases import Case

TEXT = "one two three four five six seven eight"


def stream_of(case: Case, **kwargs: Any) -> TextIteratorStreamer:
    return TextIteratorStreamer(case.tokenizer, **kwargs)


def test_the_documented_way(byte_level: Case) -> None:
    streamer, script = stream_of(byte_level), Script(ids_of(byte_level, TEXT))
    thread = script.thread(streamer=streamer)
    text = ""
    for new_text in streamer:
        assert new_text.row == 0
        text += new_text
    thread.join()
    assert text == TEXT


def test_run_is_the_whole_producer(byte_level: Case) -> None:
    streamer, script = stream_of(byte_level, skip_prompt=True), Script(ids_of(byte_level, TEXT))
    assert streamer.run(script, ids_of(byte_level, "prompt ")) == script.steps
    assert list(streamer) == [TEXT]
    assert not streamer.cancelled


def test_run_keeps_the_given_stopping_criteria(byte_level: Case) -> None:
    given: list[Any] = []

    def generate(streamer: Any, stopping_criteria: list[Any]) -> None:
        given.extend(stopping_criteria)

    streamer = stream_of(byte_level)
    streamer.run(generate, stopping_criteria=["mine"])
    assert given == ["mine", streamer.cancelled]
    assert list(streamer) == []


def test_next_on_the_streamer_itself(byte_level: Case) -> None:
    streamer = stream_of(byte_level)
    streamer.run(Script(ids_of(byte_level, TEXT)))
    assert next(streamer) == TEXT
    with pytest.raises(StopIteration):
        next(streamer)


@pytest.mark.parametrize("gate", [0, 3, None])
def test_an_error_reaches_the_reader_after_the_text(byte_level: Case, gate: int | None) -> None:
    ids = ids_of(byte_level, TEXT)[:gate]
    error = ValueError("broken")
    streamer, script = stream_of(byte_level), Script(ids, error=error)
    script.thread(streamer.run).join()
    text = ""
    with pytest.raises(ProducerError, match="ValueError: broken") as caught:
        for new in streamer:
            text += new
    assert caught.value.__cause__ is error
    assert text == byte_level.text(ids, True)


def test_keyboard_interrupt_is_raised_by_run_and_by_the_reader(byte_level: Case) -> None:
    streamer = stream_of(byte_level)
    with pytest.raises(KeyboardInterrupt):
        streamer.run(Script([], error=KeyboardInterrupt()))
    with pytest.raises(ProducerError, match="KeyboardInterrupt"):
        next(streamer)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_noticed(byte_level: Case) -> None:
    streamer = stream_of(byte_level)
    script = Script(ids_of(byte_level, TEXT), error=ValueError("not seen"))
    reader = iter(streamer)
    thread = script.thread(streamer=streamer)
    text = ""
    with pytest.raises(ProducerDiedError, match=r"without calling end\(\)"):
        for new in reader:
            text += new
    thread.join()
    assert text == TEXT
    assert list(reader) == []


def test_timeout_is_queue_empty(byte_level: Case) -> None:
    streamer = stream_of(byte_level, timeout=0.01)
    with pytest.raises(queue.Empty, match="timeout=0.01"):
        next(streamer)
    with pytest.raises(queue.Empty):
        next(stream_of(byte_level, timeout=0))


def test_a_put_without_a_whole_word_is_a_sign_of_life(
    byte_level: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    for module in (broadcast, iterator_streamer, readable_streamer):
        monkeypatch.setattr(module, "time", clock)
    streamer = stream_of(byte_level, timeout=0.4)
    step = threading.Event()

    def slow() -> None:
        for token_id in ids_of(byte_level, "incomprehensibilities")[:6]:
            now[0] += 0.3  # a producer that takes its time, but never all of it
            streamer.put([token_id])
            step.wait(0.1)  # never set: the reader looks at the clock meanwhile
        streamer.end()

    thread = threading.Thread(target=slow)
    thread.start()
    assert "".join(streamer).startswith("i")
    thread.join()


@pytest.mark.parametrize("bad", [-1, float("nan")])
def test_a_timeout_is_not_negative(byte_level: Case, bad: float) -> None:
    with pytest.raises(ValueError, match="timeout="):
        stream_of(byte_level, timeout=bad)


@pytest.mark.parametrize("how", ["break", "with", "close", "raise", "reader", "garbage"])
def test_a_reader_that_leaves_stops_the_producer(byte_level: Case, how: str) -> None:
    ids = ids_of(byte_level, TEXT)
    streamer, script = stream_of(byte_level), Script(ids, gate=5)
    thread = script.thread(streamer.run)
    assert script.waiting.wait(60)
    match how:
        case "break":
            for _ in streamer:
                break
        case "with":
            with streamer:
                next(streamer)
        case "close":
            streamer.close()
            assert list(streamer) == []
        case "raise":
            with pytest.raises(KeyError):
                for _ in streamer:
                    raise KeyError
        case "reader":
            with iter(streamer) as reader:
                next(reader)
            assert list(reader) == []
        case "garbage":
            cycle: list[Any] = [iter(streamer)]
            cycle.append(cycle)
            del cycle
            gc.collect()
    assert streamer.cancelled.is_set()
    script.go.set()
    thread.join()
    assert script.stopped
    assert script.steps == 6


def test_a_reader_that_gives_up_stops_the_producer(byte_level: Case) -> None:
    streamer = stream_of(byte_level, timeout=0.01)
    with pytest.raises(queue.Empty) as caught:  # kept, with its traceback
        for _ in streamer:
            pass
    assert streamer.cancelled
    assert caught.value.__traceback__


def test_a_cancelled_run_does_not_start(byte_level: Case) -> None:
    streamer, script = stream_of(byte_level), Script(ids_of(byte_level, TEXT))
    streamer.close()
    assert streamer.run(script) is None
    assert script.steps == 0


def test_a_stop_button_leaves_the_reader_what_was_generated(byte_level: Case) -> None:
    streamer, script = stream_of(byte_level), Script(ids_of(byte_level, TEXT), gate=5)
    thread = script.thread(streamer.run)
    assert script.waiting.wait(60)
    streamer.cancelled.set()
    script.go.set()
    thread.join()
    assert "".join(streamer) == byte_level.text(script.ids[:5], True)


def test_a_finished_reader_cancels_nothing(byte_level: Case) -> None:
    streamer = stream_of(byte_level)
    for _ in range(3):  # a streamer serves one generate after the other
        script = Script(ids_of(byte_level, TEXT))
        thread = script.thread(streamer.run)
        assert "".join(streamer) == TEXT
        thread.join()
    assert not streamer.cancelled


def test_readers_see_everything_and_the_last_to_leave_cancels(byte_level: Case) -> None:
    ids = ids_of(byte_level, TEXT)
    streamer, script = stream_of(byte_level), Script(ids, gate=len(ids) - 2)
    thread = script.thread(streamer.run)
    assert script.waiting.wait(60)
    one, two, three = streamer.tee(3)
    assert next(one) == next(two)
    one.close()
    del two
    assert not streamer.cancelled
    script.go.set()
    assert "".join(three) == TEXT
    thread.join()
    [late] = streamer.tee(1)
    assert list(late) == [TEXT]
    assert list(streamer) == [TEXT]  # its own place, taken again after all


def test_all_readers_leaving_cancels(byte_level: Case) -> None:
    streamer = stream_of(byte_level)
    readers = streamer.tee(2)
    for reader in readers:
        assert not streamer.cancelled
        reader.close()
    assert streamer.cancelled


def test_there_is_at_least_one_reader(byte_level: Case) -> None:
    with pytest.raises(ValueError, match="n=0 must be at least 1"):
        stream_of(byte_level).tee(0)


def test_the_producer_never_waits_and_late_text_is_merged(byte_level: Case) -> None:
    streamer = stream_of(byte_level)
    streamer.run(Script(ids_of(byte_level, TEXT * 50)))
    assert list(streamer) == [TEXT * 50]


def test_texts_of_rows_are_separate(byte_level: Case) -> None:
    streamer = stream_of(byte_level, skip_prompt=True)
    rows = [ids_of(byte_level, text)[:6] for text in ("first row it is", "second one, yes")]
    streamer.put([[0], [0]])
    for step in zip(*rows, strict=True):
        streamer.put(list(step))
    streamer.end()
    texts = ["", ""]
    for text in streamer:
        texts[text.row] += text
    assert texts == [byte_level.text(row, True) for row in rows]
