"""Which replica a request goes to."""

from __future__ import annotations

import random

from asyncgen_apps.ray_serve.ranking import BOUND, ranked


def test_what_begins_alike_goes_to_the_same_replica() -> None:
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


def test_no_replica_has_much_more_than_its_share() -> None:
    chooser = random.Random(1)
    loads = dict.fromkeys((f"r{number}" for number in range(6)), 0)
    for _ in range(600):  # half of the requests begin alike
        session = "popular" if chooser.random() < 0.5 else str(chooser.random())
        loads[ranked(session, loads)[0]] += 1
        assert max(loads.values()) <= BOUND * sum(loads.values()) / len(loads) + 2
    assert set(ranked("popular", loads)) == set(loads)


def test_without_a_beginning_the_emptiest_comes_first() -> None:
    assert ranked("", {"a": 3, "b": 1, "c": 2}) == ["b", "c", "a"]
    assert ranked("x", {}) == []
