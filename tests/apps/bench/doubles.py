"""A worker that computes nothing, and notes what it is asked for."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Self

from asyncgen_apps.bench import workers
from asyncgen_apps.bench.jobs import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from asyncgen_apps.bench.jobs import Job


Calls = list[tuple[str, str, dict[str, Any]]]
"""Side, operation and arguments of each call."""


class FakeWorker:
    """Stands in for a worker; :attr:`calls` has each side, operation and arguments, in order."""

    calls: ClassVar[Calls] = []
    answer: ClassVar[Callable[[str, str, dict[str, Any]], dict[str, Any]]]
    pid = 1

    def __init__(self, side: str) -> None:
        self.side = side.rpartition(":")[2]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.calls.append((self.side, "exit", {}))

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        if "job" in arguments:
            arguments |= asdict(arguments.pop("job"))
        self.calls.append((self.side, operation, arguments))
        return type(self).answer(self.side, operation, arguments)

    def run(self, job: Job, **arguments: Any) -> Run:
        return Run(**self.call("run", job=job, **arguments))


def fake_workers(
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[str, str, dict[str, Any]], dict[str, Any]],
) -> Calls:
    """Let every benchmark talk to fake workers, which answer so; return their calls."""
    monkeypatch.setattr(FakeWorker, "calls", [])
    monkeypatch.setattr(FakeWorker, "answer", staticmethod(answer), raising=False)
    monkeypatch.setattr(workers, "Worker", FakeWorker)
    return FakeWorker.calls
