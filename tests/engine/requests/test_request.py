"""A request is an identity with a name and a clock."""

from __future__ import annotations

from asyncgen.engine.requests.request import clock
from tests.engine.making import request_for


def test_requests_are_compared_by_identity() -> None:
    one, other = request_for()[0], request_for()[0]
    assert one == one and one != other
    assert len({one, other}) == 2
    assert one.id.startswith("req-") and one.id != other.id


def test_the_clock_runs_forwards() -> None:
    assert clock() <= clock()
