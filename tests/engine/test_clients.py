"""No request of one client keeps another client waiting; counted in steps of the whole engine."""

from __future__ import annotations

import pytest

from tests.engine.batches import Bench, alone, ids_of

LONG = {"max_new_tokens": 400, "do_sample": False}


@pytest.mark.parametrize(
    "greed",
    [{"n": 64, "do_sample": True, "seed": 3}, {"priority": 2**31}, {"num_beams": 8}],
    ids=["samples", "priority", "beams"],
)
def test_a_late_request_streams_at_once(greed: dict[str, object]) -> None:
    bench = Bench(pages=4000, max_running=8)
    for number in range(8):
        bench.add([1, 2, 3 + number], client="hog", **LONG | greed)
    for _ in range(30):
        bench.step()
    _, sink = bench.add([4, 5], client="late", max_new_tokens=40, do_sample=False)
    for _ in range(9):
        bench.step()
    assert ids_of(sink)
    for _ in range(41):
        bench.step()
    assert [ids_of(sink)] == alone(bench.model, [4, 5], max_new_tokens=40, do_sample=False)


def test_a_preempted_request_keeps_its_tokens() -> None:
    bench = Bench(pages=4000, max_running=4)
    given = {"n": 4, "do_sample": True, "seed": 9, "max_new_tokens": 60}
    _, sink = bench.add([1, 2, 3], client="hog", **given)
    for _ in range(20):
        bench.step()
    for number in range(6):
        bench.add([5, number], client="late", max_new_tokens=30, do_sample=False)
    bench.run()
    assert bench.batch.scheduler.num_preemptions
    assert [ids_of(sink, index) for index in range(4)] == alone(bench.model, [1, 2, 3], **given)
    bench.require_empty()


def test_beams_of_a_client_come_to_their_turn_beside_a_full_batch() -> None:
    """Its room is taken from what others hold beyond their share of the memory."""
    bench = Bench(pages=64, max_running=64)
    for number in range(20):
        bench.add([1, number], client="hog", max_new_tokens=100, do_sample=False)
    for _ in range(40):
        bench.step()
    assert bench.pool.num_available < 20
    request, sink = bench.add("ab", client="late", num_beams=4, max_new_tokens=8)
    assert bench.pool.num_available < request.num_pages <= 32
    for _ in range(40):
        bench.step()
    assert len(ids_of(sink)) == 8
    bench.run()
    bench.require_empty()


def test_request_waiting_for_all_memory_does_not_block_others() -> None:
    bench = Bench(pages=64, max_running=8)
    bench.add([1, 2], client="other", max_new_tokens=150, do_sample=False)
    bench.step()
    huge, _ = bench.add("ab", client="hog", num_beams=4, max_new_tokens=62)
    assert huge.num_pages == 64
    for number in range(3):
        _, sink = bench.add([3, number], client="late", max_new_tokens=8, do_sample=False)
        for _ in range(20):
            bench.step()
        assert len(ids_of(sink)) == 8
    bench.run()
    bench.require_empty()


def test_beams_one_after_another_leave_room_for_a_long_prompt_of_another_client() -> None:
    bench = Bench(pages=64, max_running=8)
    number = 0

    def keep_coming() -> None:
        nonlocal number
        while len(bench.engine._lane.requests) < 4:
            given = {"num_beams": 4, "max_new_tokens": 22 + number % 3}
            request, _ = bench.add("ab", client="hog", **given)
            assert 24 <= request.num_pages <= 28
            number += 1

    for _ in range(5):
        keep_coming()
        bench.step()
    # Larger than what is left when one of two ends.
    _, sink = bench.add([3] * 180, client="late", max_new_tokens=5, do_sample=False)
    for _ in range(150):
        keep_coming()
        bench.step()
    assert len(ids_of(sink)) == 5
    bench.run()
    bench.require_empty()
