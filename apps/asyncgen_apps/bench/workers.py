"""Start each side of a comparison in a fresh process, and speak to it in lines of JSON.

A side computes in its own process because torch's threads, allocator and caches are per process.
While another side is measured, it waits for a line and uses no CPU. The class of a side is named on
the command line of its process.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

import anyio
import anyio.to_thread

from asyncgen_apps.bench.jobs import Job, Run
from asyncgen_apps.bench.other_processes import OtherProcesses

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType


ROOT = Path(__file__).parents[2]
END_SECONDS = 30


class BenchError(Exception):
    """Failure of an operation in a worker."""


class EndedError(BenchError):
    """End of a worker's process."""


class Side(Protocol):
    """One side of a comparison: each public coroutine method answers a request of its name.

    It runs on asyncio, or on uvloop where an attribute ``use_uvloop`` is true. A parameter ``job``
    is a :class:`Job`.
    """

    async def aclose(self) -> None:
        """Release the model."""


def own_environment() -> dict[str, str]:
    """Return the environment of a process that imports what this one does."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


class Worker:
    """Child process that serves a :class:`Side`; use as a context manager.

    Args:
        side: ``module:Class`` of the side, built without arguments.
        command: Another program that answers such lines; this module by default.
        environment: Environment of that program; this process's by default.
        has_group: True if the process leads a group of those that it starts.
    """

    def __init__(
        self,
        side: str,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        *,
        has_group: bool = False,
    ) -> None:
        self._side = side
        self._errors = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command or [sys.executable, "-m", "asyncgen_apps.bench.workers", side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=own_environment() if environment is None else environment,
            start_new_session=has_group,
        )

    def __enter__(self) -> Self:
        """Return the worker."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process: at once after an error, else when it has closed its model."""
        if kind is not None:
            self._process.kill()
        try:
            self._process.communicate(timeout=END_SECONDS)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.communicate()
        self._errors.close()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def call(self, operation: str, **arguments: object) -> dict[str, Any]:
        """Ask for an operation and wait for its answer.

        Raises:
            BenchError: The operation failed.
            EndedError: The process ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            request = {"do": operation, "with": arguments}
            self._process.stdin.write(json.dumps(request, default=asdict) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        what = f"{self._side.partition(':')[2]}.{operation}"
        if not line:
            raise EndedError(f"{what}: the process ended{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BenchError(f"{what}: {answer['error']}")
        return answer["result"]

    def run(self, job: Job, **arguments: object) -> Run:
        """Let the side do a job; note how busy other processes are meanwhile.

        Raises:
            BenchError: The job failed.
            EndedError: The process ended.
        """
        others = OtherProcesses(self.pid)
        found = Run(**self.call("run", job=job, **arguments))
        return replace(found, others=others.cores())

    def _last_words(self) -> str:
        """Return the end of what the process wrote to standard error."""
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return f": {lines[-1]}" if lines else ""


@contextmanager
def started(sides: Mapping[str, str]) -> Iterator[dict[str, Worker]]:
    """Start a worker for each side, by the names of the sides, and end all on leaving."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(Worker(side)) for name, side in sides.items()}


async def serve(side: Side, requests: IO[str], answers: IO[str]) -> None:
    """Answer requests with the methods of ``side`` until there are no more.

    An operation that raises is answered with the error; the next one is still served.
    """
    try:
        # A thread waits for the line: the loop itself stays free to be measured.
        while line := await anyio.to_thread.run_sync(requests.readline):
            request = json.loads(line)
            try:
                given = request["with"]
                if "job" in given:
                    given["job"] = Job(**given["job"])
                result = await getattr(side, request["do"])(**given)
                answer = {"result": result}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer, default=asdict) + "\n")
            answers.flush()
    finally:
        await side.aclose()


def main() -> None:
    """Serve the side named on the command line over standard input and output."""
    module, _, name = sys.argv[1].partition(":")
    # Output of libraries must not appear between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side = getattr(importlib.import_module(module), name)()
    options = {"use_uvloop": getattr(side, "use_uvloop", False)}
    anyio.run(serve, side, sys.stdin, answers, backend_options=options)


if __name__ == "__main__":
    main()
