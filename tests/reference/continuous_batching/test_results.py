"""Results wait for their readers in order, by name, and cost their tokens once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.engine.requests.admission import Admission, Seat
from asyncgen.engine.scheduling.state import RequestStatus
from asyncgen.errors import InvalidRequestError
from asyncgen.reference.continuous_batching.results import Collector, Results
from asyncgen.types import TokenEvent, TokenLogprob
from tests.cases import for_each
from tests.doubles.models import PATIENCE
from tests.engine.making import request_for

if TYPE_CHECKING:
    from asyncgen.engine.scheduling.state import GenerationOutput


def yes() -> bool:
    """Somebody runs."""
    return True


def collector(results: Results, *names: str, **options: Any) -> Collector:
    """The sink of a request whose samples have these names."""
    results.expect(names, request_for()[0])
    settings = {"streaming": False, "record_timestamps": False, "place": None, **options}
    return Collector(results, names, [1, 2], created=10.0, **settings)


def taken(results: Results, name: str | None = None) -> GenerationOutput:
    """Take a result that is there."""
    output = results.take(name, 0, yes)
    assert output is not None
    return output


def test_by_order_and_by_name() -> None:
    results = Results()
    sinks = [collector(results, name, streaming=True) for name in "abc"]
    for token_id in (5, 6):
        for sink in sinks:
            sink.put_nowait(TokenEvent(0, (token_id,), ""))
    order = [taken(results), taken(results, "b"), taken(results, "c"), taken(results)]
    assert [(output.request_id, output.generated_tokens) for output in order] == [
        ("a", [5]),
        ("b", [5]),
        ("c", [5]),
        ("a", [5, 6]),
    ]
    assert [taken(results).request_id for _ in range(2)] == ["b", "c"]
    assert results.take(None, 0, yes) is None
    assert not results._of_name and not results._unread


def test_several_samples_in_their_turns() -> None:
    results = Results()
    sink = collector(results, "a", "a1", record_timestamps=True)
    sink.put_nowait(TokenEvent(1, (3,), "", time=1.0))
    sink.put_nowait(TokenEvent(0, (4, 5), "", time=2.0))
    sink.put_nowait(TokenEvent(1, (), "", time=3.0, finish_reason="stop"))
    assert results.num_ended == 1
    output = taken(results)
    assert (output.request_id, output.generated_tokens, output.timestamps) == ("a1", [3], [11.0])
    assert output.status is RequestStatus.FINISHED and output.lifespan == (-1.0, 13.0)
    sink.put_nowait(ZeroDivisionError("over"))
    output = taken(results)
    assert (output.request_id, output.timestamps) == ("a", [12.0, 12.0])
    assert output.error == "ZeroDivisionError: over" and output.status is RequestStatus.FAILED
    assert results.take(None, 0, yes) is None, "a sample that has ended ends once"


@for_each(
    ("reason", "error"),
    [
        ("stop", None),
        ("length", None),
        ("time", None),
        ("cancelled", "the request was cancelled"),
        ("aborted", "the manager was stopped before the request was done"),
    ],
)
def test_ends(reason: Any, error: str | None) -> None:
    results = Results()
    collector(results, "a").put_nowait(TokenEvent(0, (3,), "", finish_reason=reason))
    output = taken(results)
    assert (output.error, output.generated_tokens) == (error, [3])
    assert output.is_finished()


def test_logprobs_and_the_time_in_the_queue() -> None:
    place = Seat(Admission(max_running=1, max_queue_size=None, clock=lambda: 10.5))
    place.enter()
    results = Results()
    sink = collector(results, "a", place=place)
    place.started()
    entry = TokenLogprob(3, "", -0.5)
    sink.put_nowait(TokenEvent(0, (3,), "", logprobs=(entry,), finish_reason="length", time=1.0))
    output = taken(results)
    assert (output.logprobs, output.lifespan) == ([-0.5], (10.5, 11.0))


def test_unread_tokens_cost_no_copies() -> None:
    results = Results()
    sink = collector(results, "a", streaming=True)
    for token_id in range(1000):
        sink.put_nowait(TokenEvent(0, (token_id,), ""))
    assert len({id(unread.collector) for unread in results._unread.values()}) == 1
    assert sink.sequences[0].token_ids == [*range(1000)]
    assert [len(taken(results).generated_tokens) for _ in range(1000)] == [*range(1, 1001)]


def test_names_are_taken_until_they_are_read() -> None:
    results = Results()
    sink = collector(results, "a")
    with pytest.raises(InvalidRequestError, match="in use"):
        results.expect(["b", "a"], request_for()[0])
    assert not results.is_known("b"), "all or none"
    sink.put_nowait(TokenEvent(0, (3,), "", finish_reason="stop"))
    assert results.is_known("a") and results.request("a") is None
    taken(results)
    assert not results.is_known("a")
    collector(results, "a")
    results.forget(["a", "unknown"])
    assert not results.is_known("a")


@pytest.mark.parametrize("name", [None, "a"])
def test_a_reader_is_woken(name: str | None) -> None:
    results = Results()
    sink = collector(results, "a")
    running = threading.Event()
    running.set()
    found: list[GenerationOutput | None] = []
    readers = [
        threading.Thread(target=lambda: found.append(results.take(name, PATIENCE, running.is_set)))
        for _ in range(2)
    ]
    for reader in readers:
        reader.start()
    sink.put_nowait(TokenEvent(0, (3,), "", finish_reason="stop"))
    running.clear()
    results.wake()
    for reader in readers:
        reader.join(PATIENCE)
    assert sorted(output is None for output in found) == [False, True]


def test_there_is_nothing_to_wait_for() -> None:
    results = Results()
    assert results.take("unknown", None, yes) is None
    assert results.take(None, None, bool) is None
    assert results.take(None, 0.01, yes) is None
