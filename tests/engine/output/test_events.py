"""From settled ids to events: text, reasons, counts and times, for one sample and for several."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen.engine.metrics import EngineMetrics
from asyncgen.engine.output.events import EventWriter
from asyncgen.types import Timing, TokenLogprob
from tests.doubles.models import EOS, byte_tokenizer
from tests.engine.making import Clock, request_for

if TYPE_CHECKING:
    from tests.doubles.sinks import RecordingSink


def writer(**given: Any) -> tuple[EventWriter, RecordingSink, Clock]:
    """A writer whose request was accepted at 10 s and taken up at 12 s."""
    request, sink = request_for(**given)
    clock = Clock()
    request, clock.now = replace(request, accepted_at=10.0), 12.0
    return EventWriter(request, byte_tokenizer(), clock), sink, clock


def test_one_sample_from_beginning_to_end() -> None:
    events, sink, clock = writer()
    clock.now = 13.0
    assert events.write(0, [104], None)
    clock.now = 14.0
    assert events.write(0, [105, 106], None)
    clock.now = 15.0
    assert events.live == {0}
    assert not events.write(0, [EOS], "stop")
    assert events.live == set()
    first, second, last = sink.events
    assert (first.token_ids, first.text, first.time) == ((104,), "h", 3.0)
    assert (second.token_ids, second.text, second.time) == ((105, 106), "ij", 4.0)
    assert (first.finish_reason, first.usage, first.timing) == (None, None, None)
    assert (last.finish_reason, last.stop_reason) == ("stop", EOS)
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 4)
    assert last.timing == Timing(queue=2.0, first_token=3.0, total=5.0, tokens_per_second=1.5)


def test_logprobs_travel_with_their_event() -> None:
    events, sink, _ = writer()
    entry = TokenLogprob(104, "h", -0.5)
    events.write(0, [104], None, (entry,))
    assert sink.events[0].logprobs == (entry,)


def test_external_end_emits_the_held_back_text() -> None:
    events, sink, _ = writer(stop="xyz")
    events.write(0, list(b"ax"), None)
    assert sink.text == "a"
    events.end("cancelled")
    events.end("cancelled")
    assert sink.text == "ax"
    last = sink.events[-1]
    assert (last.token_ids, last.finish_reason) == ((), "cancelled")
    assert last.usage is not None and last.usage.completion_tokens == 2


def test_an_end_before_the_first_token() -> None:
    events, sink, clock = writer()
    clock.now = 20.0
    events.end("aborted")
    [event] = sink.events
    assert (event.text, event.finish_reason) == ("", "aborted")
    assert event.timing == Timing(2.0, None, 10.0, None)


def test_a_stop_string_ends_a_sample_whatever_its_reason() -> None:
    for reason in (None, "length", "stop"):
        events, sink, _ = writer(stop=["bc"])
        assert events.write(0, list(b"ab"), None)
        assert not events.write(0, list(b"cd"), reason)
        assert sink.text == "a"
        assert (sink.events[-1].finish_reason, sink.events[-1].stop_reason) == ("stop", "bc")
        # What stands behind the stop string in the same step was never asked for.
        assert sink.events[-1].token_ids == (99,)


def test_a_stop_string_may_end_in_the_rest_of_the_text() -> None:
    events, sink, _ = writer(stop="\ufffd")
    events.write(0, [97, 0xC3], None)
    events.end("cancelled")
    assert sink.text == "a"
    assert (sink.events[-1].finish_reason, sink.events[-1].stop_reason) == ("stop", "\ufffd")


def test_a_reason_that_is_no_end_token_names_none() -> None:
    events, sink, _ = writer()
    events.write(0, [97], "stop")
    assert (sink.events[-1].finish_reason, sink.events[-1].stop_reason) == ("stop", None)


def test_of_several_samples_the_last_end_closes_the_request() -> None:
    events, sink, _ = writer(n=3, do_sample=True)
    assert events.write(1, [97], None)
    assert not events.write(1, [EOS], "stop")
    assert events.live
    assert not events.write(0, [98], "length")
    assert [event.usage for event in sink.events] == [None] * 3
    events.end("cancelled")
    last = sink.events[-1]
    assert (last.index, last.finish_reason) == (2, "cancelled")
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 3)


def test_no_rate_where_no_time_passed() -> None:
    events, sink, _ = writer()
    events.write(0, [97], None)
    events.write(0, [98], "length")
    timing = sink.events[-1].timing
    assert timing is not None and timing.tokens_per_second is None


def test_metrics_count_start_tokens_and_end() -> None:
    request, _ = request_for(n=2, do_sample=True)
    clock, metrics = Clock(), EngineMetrics()
    request, clock.now = replace(request, accepted_at=10.0), 12.0
    events = EventWriter(request, byte_tokenizer(), clock, metrics)
    clock.now = 13.0
    events.write(0, [104], None)
    events.write(1, [104], None)
    clock.now = 14.0
    events.write(0, [EOS], "stop")
    events.end("cancelled")
    shot = metrics.snapshot()
    assert (shot.queue_time.sum, shot.time_to_first_token.sum) == (2.0, 3.0)
    assert (shot.inter_token_latency.count, shot.generation_tokens) == (1, 3)
    assert dict(shot.finished) == {"cancelled": 1}
    assert shot.e2e_latency.sum == 4.0


def test_without_a_tokenizer_there_are_ids_alone() -> None:
    request, sink = request_for()
    events = EventWriter(request, None, Clock())
    events.write(0, [104], None)
    events.write(0, [105, EOS], "stop")
    assert [event.token_ids for event in sink.events] == [(104,), (105, EOS)]
    assert sink.text == "" and sink.events[-1].stop_reason == EOS
