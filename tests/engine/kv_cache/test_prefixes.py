"""One computes, the others wait, and not for ever."""

from __future__ import annotations

from asyncgen.engine.kv_cache.block_hashes import block_hashes
from asyncgen.engine.scheduling.state import RequestState
from asyncgen.engine.scheduling.waiting_queue import PrefixesInProgress, WaitingQueue


def request(name: str, tokens: list[int]) -> RequestState:
    """A request whose blocks of two tokens have their hashes."""
    state = RequestState(name, tokens)
    state.block_hashes = block_hashes(tokens, 2)
    return state


def waits_for(prefixes: PrefixesInProgress, state: RequestState, first: int = 0) -> bytes | None:
    """The hash of the block that a request is deferred for; it is recalled at once."""
    queue = prefixes._queue
    queue.push(state)
    hashes = state.block_hashes[first:]
    found = next(iter(queue.deferred)) if prefixes.defer(state, hashes) else None
    if found is not None:
        queue.recall(found)
    queue.remove(state)
    return found


def test_request_waits_for_the_end_of_the_common_prefix() -> None:
    prefixes = PrefixesInProgress(WaitingQueue())
    running, other = request("a", [1, 1, 2, 2, 3, 3]), request("b", [1, 1, 2, 2, 4, 4])
    prefixes.add(running)
    assert waits_for(prefixes, other) == running.block_hashes[1]
    assert waits_for(prefixes, other, 1) == running.block_hashes[1]
    assert waits_for(prefixes, other, 2) is None
    assert running.branch_blocks == [2], "its state is kept where the other one goes on"


def test_one_waits_for_one_request_at_a_time() -> None:
    prefixes = PrefixesInProgress(WaitingQueue())
    first, second = request("a", [1, 1]), request("b", [1, 1, 2, 2])
    prefixes.add(first)
    prefixes.add(second)
    assert waits_for(prefixes, second) == first.block_hashes[0]
    prefixes.finish(first, first.block_hashes[0])
    assert waits_for(prefixes, second) is None
    assert waits_for(prefixes, second, 1) == second.block_hashes[1]


def test_published_blocks_are_not_in_progress() -> None:
    prefixes = PrefixesInProgress(WaitingQueue())
    running = request("a", [1, 1, 2, 2])
    running.num_published = 1
    prefixes.add(running)
    assert len(prefixes) == 1
    assert waits_for(prefixes, running) is None


def test_deferred_requests_come_back_when_the_other_leaves_or_gets_there() -> None:
    for leaves in (True, False):
        queue = WaitingQueue()
        prefixes = PrefixesInProgress(queue)
        running, waiting = request("a", [1, 1, 2, 2]), request("b", [1, 1, 2, 2])
        prefixes.add(running)
        queue.push(waiting)
        assert prefixes.defer(waiting, waiting.block_hashes)
        prefixes.check_integrity({"a": running})
        prefixes.finish(waiting, waiting.block_hashes[1])
        assert waiting in queue.deferred_states
        if leaves:
            prefixes.remove(running)
        else:
            prefixes.finish(running, running.block_hashes[0])
            assert waiting in queue.deferred_states
            prefixes.finish(running, running.block_hashes[1])
        assert waiting not in queue.deferred_states
        assert list(queue.in_turn()) == [waiting]
        assert len(prefixes) == 0


def test_requests_do_not_wait_for_the_prefix_of_an_idle_one() -> None:
    queue = WaitingQueue()
    prefixes = PrefixesInProgress(queue)
    running, waiting = request("a", [1, 1]), request("b", [1, 1])
    running.last_chunk = 10
    prefixes.add(running)
    queue.push(waiting)
    queue.defer(waiting, waiting.block_hashes[0])
    prefixes.stop_waiting_for_idle(18)
    assert waiting in queue.deferred_states
    prefixes.stop_waiting_for_idle(19)
    assert waiting not in queue.deferred_states
    assert not waiting.waits_for_prefix
