"""One computes, the others wait, and not for ever."""

from __future__ import annotations

from asyncgen.engine.kv_cache.block_hashes import block_hashes
from asyncgen.engine.scheduling.state import RequestState
from asyncgen.engine.scheduling.waiting_queue import PrefixLeaders, WaitingQueue


def request(name: str, tokens: list[int]) -> RequestState:
    """A request whose pages of two tokens have their keys."""
    state = RequestState(name, tokens)
    state.block_hashes = block_hashes(tokens, 2)
    return state


def test_one_waits_for_the_end_of_what_is_common() -> None:
    leaders = PrefixLeaders(WaitingQueue())
    leader, other = request("a", [1, 1, 2, 2, 3, 3]), request("b", [1, 1, 2, 2, 4, 4])
    leaders.lead(leader)
    assert leaders.awaited_key(other.block_hashes) == leader.block_hashes[1]
    assert leaders.awaited_key(other.block_hashes[1:]) == leader.block_hashes[1]
    assert leaders.awaited_key(other.block_hashes[2:]) is None
    assert leaders.awaited_key([]) is None


def test_one_waits_for_one_leader_at_a_time() -> None:
    leaders = PrefixLeaders(WaitingQueue())
    first, second = request("a", [1, 1]), request("b", [1, 1, 2, 2])
    leaders.lead(first)
    leaders.lead(second)
    assert leaders.awaited_key(second.block_hashes) == first.block_hashes[0]
    leaders.settle(first, first.block_hashes[0])
    assert leaders.awaited_key(second.block_hashes) is None
    assert leaders.awaited_key(second.block_hashes[1:]) == second.block_hashes[1]


def test_only_what_is_not_published_is_led() -> None:
    leaders = PrefixLeaders(WaitingQueue())
    leader = request("a", [1, 1, 2, 2])
    leader.num_published = 1
    leaders.lead(leader)
    assert len(leaders) == 1
    assert leaders.awaited_key(leader.block_hashes) is None


def test_followers_come_back_when_the_leader_leaves_or_gets_there() -> None:
    for leaves in (True, False):
        queue = WaitingQueue()
        leaders = PrefixLeaders(queue)
        leader, follower = request("a", [1, 1, 2, 2]), request("b", [1, 1, 2, 2])
        leaders.lead(leader)
        queue.push(follower)
        key = leaders.awaited_key(follower.block_hashes)
        assert key is not None
        queue.set_aside(follower, key)
        leaders.check_integrity({"a": leader})
        leaders.settle(follower, key)
        assert queue.is_aside(follower)
        if leaves:
            leaders.leave(leader)
        else:
            leaders.settle(leader, leader.block_hashes[0])
            assert queue.is_aside(follower)
            leaders.settle(leader, leader.block_hashes[1])
        assert not queue.is_aside(follower)
        assert list(queue.in_turn()) == [follower]
        assert len(leaders) == 0


def test_patience_ends() -> None:
    queue = WaitingQueue()
    leaders = PrefixLeaders(queue)
    leader, follower = request("a", [1, 1]), request("b", [1, 1])
    leader.last_chunk = 10
    leaders.lead(leader)
    queue.push(follower)
    queue.set_aside(follower, follower.block_hashes[0])
    leaders.recall_the_impatient(18)
    assert queue.is_aside(follower)
    leaders.recall_the_impatient(19)
    assert not queue.is_aside(follower)
    assert not follower.waits_for_prefix
