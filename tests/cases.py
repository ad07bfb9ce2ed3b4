"""Run many cases in one test, where they differ in nothing but values.

A test of its own costs milliseconds for each case: pytest collects it in every worker, sets it up
and reports it. `for_each` replaces ``pytest.mark.parametrize`` where cases share their fixtures.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def for_each(
    names: str | tuple[str, ...],
    cases: Iterable[Any],
    *,
    ids: Callable[[Any], object] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call a test once for each case; the first that fails ends it, and a note names the case.

    Args:
        names: Parameters of the test that a case fills, as ``pytest.mark.parametrize`` takes them.
        cases: A value for each call, or a tuple of values where there are several names.
        ids: Name of a value, for the note; its repr without one.

    Returns:
        A decorator. The test keeps its other parameters, which are fixtures that all cases share.
        A case that skips is left out; the test is skipped if all are.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [_values(case, len(keys)) for case in cases]

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        run: Any = (
            _async_run(test, keys, table, ids)
            if inspect.iscoroutinefunction(test)
            else _run(test, keys, table, ids)
        )
        signature = inspect.signature(test)
        left = [each for name, each in signature.parameters.items() if name not in keys]
        run.__signature__ = signature.replace(parameters=left)
        return run

    return decorate


def _values(case: Any, count: int) -> tuple[Any, ...]:
    values = case
    if type(case).__name__ == "ParameterSet":
        assert not case.marks, f"a case with marks needs a test of its own: {case!r}"
        values = case.values
    if count == 1:
        return tuple(values) if values is not case else (case,)
    assert len(values) == count, f"{count} values are named, this case has others: {case!r}"
    return tuple(values)


def _run(test: Any, keys: list[str], table: list[tuple[Any, ...]], ids: Any) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        for given in _each_that_runs(keys, table, ids):
            with given:
                test(*args, **fixtures, **given.values)

    return run


def _async_run(test: Any, keys: list[str], table: list[Any], ids: Any) -> Callable[..., Any]:
    @functools.wraps(test)
    async def run(*args: Any, **fixtures: Any) -> None:
        for given in _each_that_runs(keys, table, ids):
            with given:
                await test(*args, **fixtures, **given.values)

    return run


def _each_that_runs(keys: list[str], table: list[tuple[Any, ...]], ids: Any) -> Iterator[_Case]:
    assert table, "no cases: a test without any proves nothing"
    cases = [_Case(dict(zip(keys, values, strict=True)), ids) for values in table]
    yield from cases
    if all(case.skipped for case in cases):
        pytest.skip(cases[0].skipped)


class _Case:
    """Values of one call, as a context that names them in what the call raises."""

    def __init__(self, values: dict[str, Any], ids: Any) -> None:
        self.values = values
        self.skipped = ""
        self._ids = ids or repr

    def __enter__(self) -> None:
        """Begin the call."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Take a skip down, and name the case in anything else."""
        if isinstance(error, pytest.skip.Exception):
            self.skipped = str(error)
            return True
        if error is not None:
            said = ", ".join(f"{name}={self._ids(value)}" for name, value in self.values.items())
            error.add_note(f"the case: {said[:2000]}")
        return False


def some(cases: Iterable[Any], count: int) -> list[Any]:
    """Leave ``count`` cases, evenly spaced, to plain pytest; ``pytest -m gate`` runs the others.

    Returns:
        All cases, for ``pytest.mark.parametrize``.
    """
    table = list(cases)
    plain = {index * len(table) // count for index in range(count)}
    return [case if index in plain else _for_the_gate(case) for index, case in enumerate(table)]


def _for_the_gate(case: Any) -> Any:
    if type(case).__name__ == "ParameterSet":
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.gate])
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.gate)


on_asyncio = pytest.mark.parametrize(
    "anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.gate)]
)
"""For a long test of which no part depends on the event loop: the gate runs it on trio, too."""
