"""Test the choice of a replica for a request."""

from __future__ import annotations

import random

import pytest

from asyncgen_apps.ray_serve.ranking import (
    BOUND,
    MOST_KNOWN,
    UNSENT_SECONDS,
    RequestPlacer,
    fills_a_page,
    ranked,
)


def test_equal_prefixes_go_to_the_same_replica() -> None:
    names = [f"r{number}" for number in range(8)]
    idle = dict.fromkeys(names, 0)
    first = {f"s{number}": ranked(f"s{number}", idle)[0] for number in range(400)}
    assert all(ranked(session, idle)[0] == name for session, name in first.items())
    counts = [list(first.values()).count(name) for name in names]
    assert min(counts) > 25  # of 50
    lost = names[3]
    left = {name: 0 for name in names if name != lost}
    moved = [session for session, name in first.items() if ranked(session, left)[0] != name]
    assert set(moved) == {session for session, name in first.items() if name == lost}


@pytest.mark.parametrize("is_sent", [True, False])
def test_no_replica_has_much_more_than_its_share(is_sent: bool) -> None:
    chooser = random.Random(1)
    loads, sums = dict.fromkeys((f"r{number}" for number in range(6)), 0), [0] * 6
    placer = RequestPlacer(lambda: 0.0)
    for number in range(600):  # half of the requests begin alike
        session = "popular" if chooser.random() < 0.5 else str(chooser.random())
        name = placer.place(number, session, loads, is_long=True)[0]
        sums[int(name[1:])] += 1
        if is_sent:
            loads[name] += 1
            placer.sent(name)
        assert max(sums) <= BOUND * sum(sums) / len(sums) + 2
    assert set(ranked("popular", loads, "r0")) == set(loads)


@pytest.mark.parametrize("is_sent", [True, False])
@pytest.mark.parametrize(("is_long", "most"), [(False, 8), (True, 9)])
def test_different_prompts_are_spread_evenly(is_sent: bool, is_long: bool, most: int) -> None:
    """16 over two idle replicas: whether they come one after the other, or at a time."""
    for number in range(200):
        loads, counts = {f"a{number}": 0, f"b{number}": 0}, [0, 0]
        placer = RequestPlacer(lambda: 0.0)
        for request in range(16):
            session = f"{number}: {request}"
            name = placer.place(request, session, loads, is_long=is_long)[0]
            counts[name[0] == "b"] += 1
            if is_sent:
                loads[name] += 1
                placer.sent(name)
        assert max(counts) <= most and sum(counts) == 16


def test_a_beginning_that_is_held_counts_more_than_a_small_difference() -> None:
    placer = RequestPlacer()
    idle = {"a": 0, "b": 0, "c": 0}
    # A first turn is short: it goes to the emptiest one, which the next turn finds again.
    holder = placer.place(1, "talk", {"a": 9, "b": 8, "c": 7}, is_long=False)[0]
    assert holder == "c"
    placer.sent("c")
    assert placer.place(2, "talk", {"a": 7, "b": 7, "c": 8}, is_long=True)[0] == "c"
    assert placer.place(3, "talk", {"a": 1, "b": 0, "c": 30}, is_long=False)[0] == "b"
    assert placer.place(4, "talk", {"a": 1, "b": 30, "c": 30}, is_long=True)[0] == "a"
    for number in range(MOST_KNOWN):
        placer.place(5, str(number), idle, is_long=True)
    assert "talk" not in placer._holders and len(placer._holders) == MOST_KNOWN


def test_placed_but_unsent_requests_expire() -> None:
    now = 0.0
    placer = RequestPlacer(lambda: now)
    loads = {"a": 0, "b": 3}
    for request in (1, 2, 3, 3, 3):
        assert placer.place(request, "", loads, is_long=False)[0] == "a"
    for request in (4, 5, 6, 7):
        placer.place(request, "", loads, is_long=False)
    assert len(placer._unsent) == 7
    now = UNSENT_SECONDS + 1
    assert placer.place(8, "", loads, is_long=False) == ["a", "b"]
    assert len(placer._unsent) == 1
    assert placer.place(9, "x", {}, is_long=True) == []


def test_without_a_beginning_the_emptiest_comes_first() -> None:
    assert ranked("", {"a": 3, "b": 1, "c": 2}) == ["b", "c", "a"]
    assert ranked("x", {}) == []


def test_fills_a_page_from_its_length_on() -> None:
    assert fills_a_page("a" * 64) and not fills_a_page("a" * 63)
    assert fills_a_page([1] * 16) and not fills_a_page([1] * 15)
    talk = [{"role": "user", "content": "a" * 40}, {"role": "assistant", "content": "b" * 40}]
    assert fills_a_page(talk) and not fills_a_page(talk[:1])


def test_a_replica_that_says_nothing_comes_last() -> None:
    placer = RequestPlacer()
    loads = {"a": 9, "silent": None, "b": 3}
    for number, is_long in enumerate((False, True)):
        assert placer.place(number, "s", loads, is_long=is_long)[-1] == "silent"
    assert placer.place(2, "t", {"a": 1, "b": 1}, is_long=True)
    holder = placer.place(3, "held", {"silent": 0}, is_long=True)
    assert holder == ["silent"]
    assert placer.place(4, "held", loads, is_long=True)[-1] == "silent"
    assert sorted(placer.place(5, "s", {"x": None, "y": None}, is_long=True)) == ["x", "y"]
