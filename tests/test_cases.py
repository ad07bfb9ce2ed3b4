"""Test `tests.cases`: every case runs, and the one that fails is named."""

from __future__ import annotations

import anyio
import pytest

from tests.cases import for_each


def test_each_case_runs_and_fixtures_stay() -> None:
    seen = []

    @for_each("left, right", [(1, 2), pytest.param(3, 4, id="named")])
    @for_each("factor", [10, 20])
    def check(left: int, right: int, factor: int, fixture: str) -> None:
        seen.append((left * factor, right, fixture))

    check(fixture="shared")
    assert seen == [(10, 2, "shared"), (20, 2, "shared"), (30, 4, "shared"), (60, 4, "shared")]


def test_a_failure_names_its_case() -> None:
    @for_each("number", [1, 2, 3])
    async def check(number: int) -> None:
        assert number != 2

    with pytest.raises(AssertionError) as failure:
        anyio.run(check)
    assert failure.value.__notes__ == ["the case: number=2"]


def test_it_is_skipped_where_every_case_is() -> None:
    @for_each("number", [1, 2])
    def check(number: int) -> None:
        if number < limit:
            pytest.skip("too small")

    limit = 2
    check()
    limit = 3
    with pytest.raises(pytest.skip.Exception, match="too small"):
        check()


def test_no_cases_prove_nothing() -> None:
    @for_each("number", [])
    def check(number: int) -> None: ...

    with pytest.raises(AssertionError, match="no cases"):
        check()
