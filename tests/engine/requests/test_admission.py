"""Test which requests are admitted, and when a refused one should come again."""

from __future__ import annotations

from collections import Counter

import pytest

from asyncgen.engine.requests.admission import Admission, Seat
from asyncgen.errors import OverloadedError
from tests.cases import for_each
from tests.engine.making import Clock, seated

PLACES = 30
"""In the queue that clients share."""


def test_a_free_row_is_no_place_in_the_queue() -> None:
    admission = Admission(max_running=2, max_queue_size=1)
    places = [seated(admission) for _ in range(3)]
    with pytest.raises(OverloadedError, match="`max_queue_size` is 1"):
        seated(admission)
    places[0].started()
    places[1].started()
    assert (admission.num_waiting, admission.num_running) == (1, 2)
    with pytest.raises(OverloadedError):
        seated(admission)
    places[0].left()
    places.append(seated(admission))


def test_memory_that_is_short_leaves_the_queue_alone() -> None:
    admission = Admission(max_running=8, max_queue_size=1)
    place = seated(admission)
    admission.is_blocked = True
    with pytest.raises(OverloadedError):
        seated(admission)
    place.left()


def test_places_are_given_back_once() -> None:
    admission = Admission(max_running=1, max_queue_size=None)
    place = seated(admission)
    for _ in range(2):
        place.left()
        place.started()
    assert (admission.num_waiting, admission.num_running) == (0, 0)
    place = seated(admission)
    for _ in range(2):
        place.started()
    assert (admission.num_waiting, admission.num_running) == (0, 1)
    place.left()
    place.left()
    assert (admission.num_waiting, admission.num_running) == (0, 0)


def test_no_limit() -> None:
    admission = Admission(max_running=1, max_queue_size=None)
    places = [seated(admission) for _ in range(1000)]
    assert admission.num_waiting == len(places)


def test_retry_after_follows_the_rate() -> None:
    clock = Clock()
    admission = Admission(max_running=1, max_queue_size=1, clock=clock)
    assert admission.retry_after() == 1.0  # nothing is known yet

    def serve(seconds: float, count: int) -> None:
        for _ in range(count):
            place = seated(admission)
            place.started()
            clock.now += seconds
            place.left()

    serve(2.0, 200)
    assert admission.retry_after() == pytest.approx(2.0, rel=0.05)
    serve(0.25, 200)
    assert admission.retry_after() == pytest.approx(0.25, rel=0.05)
    clock.now += 1000.0  # nothing ends any more
    assert admission.retry_after() > 10.0
    clock.now += 1e9
    assert admission.retry_after() == 60.0
    places = [seated(admission) for _ in range(2)]
    with pytest.raises(OverloadedError) as caught:
        seated(admission)
    assert caught.value.retry_after == 60.0 and len(places) == 2


def test_one_client_cannot_fill_the_waiting_queue() -> None:
    admission = Admission(max_running=1, max_queue_size=8)
    running = seated(admission, "hog")
    running.started()
    places = [seated(admission, "hog") for _ in range(8)]
    with pytest.raises(OverloadedError):
        seated(admission, "hog")
    places += [seated(admission, "other") for _ in range(4)]
    with pytest.raises(OverloadedError):
        seated(admission, "other")
    places += [seated(admission, "third") for _ in range(2)]
    with pytest.raises(OverloadedError):
        seated(admission, "third")
    for place in places:
        place.left()
    assert (admission.num_waiting, admission.num_running) == (0, 1)


def test_a_place_comes_back_with_a_request_that_is_dropped() -> None:
    admission = Admission(max_running=2, max_queue_size=1)
    for _ in range(5):
        places = [seated(admission, "a") for _ in range(3)]
        places[0].started()
        places[1].started()
        assert (admission.num_waiting, admission.num_running) == (1, 2)
        places.clear()
        assert (admission.num_waiting, admission.num_running) == (0, 0)
    assert admission.retry_after() == 1.0  # they did not end, so they are no rate
    seated(admission, "b")
    assert list(admission._waiting) == ["b"]  # clients that are gone are forgotten


@for_each("num_clients", [2, 3, 5])
@for_each("hog_first", [False, True])
def test_places_are_shared(num_clients: int, hog_first: bool) -> None:
    """In 200 steps each client has nine tenths of an even share, or more; one asks for hundreds."""
    admission = Admission(max_running=1, max_queue_size=PLACES)
    waiting: dict[int, list[Seat]] = {client: [] for client in range(num_clients)}
    had, running = Counter[int](), seated(admission, "0")
    running.started()

    def ask(client: int) -> None:
        for _ in range(300 if client == 0 else PLACES + 1):
            try:
                waiting[client].append(seated(admission, str(client)))
            except OverloadedError:
                return

    if hog_first:
        ask(0)
    for step in range(200):
        for client in waiting:
            ask(client)
        had.update({client: len(places) for client, places in waiting.items()})
        running.left()  # the engine takes them by turns
        running = waiting[step % num_clients].pop(0)
        running.started()
    even = 200 * PLACES / num_clients
    assert all(had[client] >= 0.9 * even for client in waiting), had


def test_more_clients_than_places_are_refused() -> None:
    admission = Admission(max_running=1, max_queue_size=2)
    places = [seated(admission, client) for client in "aaab"]
    places[0].started()
    with pytest.raises(OverloadedError):
        seated(admission, "c")
