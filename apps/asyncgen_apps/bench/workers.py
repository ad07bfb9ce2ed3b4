"""One process for each side of a comparison, spoken to in lines of JSON.

A side computes in its own process because torch's threads, allocator and caches are per process;
while the other side is measured it waits for a line and uses no CPU. Knows no benchmark: what a
worker can do is a class named on its command line.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol, Self

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from types import TracebackType


ROOT = Path(__file__).parents[2]
END_SECONDS = 30


class BenchError(Exception):
    """A worker could not do what it was asked for."""


class Side(Protocol):
    """What a worker can do: every public coroutine method answers a request of its name.

    Its event loop is that of asyncio, or of uvloop where an attribute ``use_uvloop`` is true.
    """

    async def aclose(self) -> None:
        """Release the model."""


class Worker:
    """A child process that serves a :class:`Side`; use as a context manager.

    Args:
        side: ``module:Class`` of the side, built without arguments.
    """

    def __init__(self, side: str) -> None:
        self._side = side
        self._errors = tempfile.TemporaryFile("w+")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "asyncgen_apps.bench.workers", side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
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
            BenchError: The operation failed, or the process ended.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": operation, "with": arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        ended = {"error": "the process ended" + self._last_words()} if not line else {}
        answer: dict[str, Any] = ended or json.loads(line)
        if "error" in answer:
            raise BenchError(f"{self._side.partition(':')[2]}.{operation}: {answer['error']}")
        return answer["result"]

    def _last_words(self) -> str:
        """Return the end of what the process wrote to standard error."""
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return f": {lines[-1]}" if lines else ""


async def serve(side: Side, requests: IO[str], answers: IO[str]) -> None:
    """Answer requests with the methods of ``side`` until there are no more.

    An operation that raises is answered with the error; the next one is still served.
    """
    try:
        # A thread waits for the line: the loop itself stays free to be measured.
        while line := await anyio.to_thread.run_sync(requests.readline):
            request = json.loads(line)
            try:
                result = await getattr(side, request["do"])(**request["with"])
                answer = {"result": result}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    finally:
        await side.aclose()


def main() -> None:
    """Serve the side named on the command line over standard input and output."""
    module, _, name = sys.argv[1].partition(":")
    # What libraries print must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    side = getattr(importlib.import_module(module), name)()
    options = {"use_uvloop": getattr(side, "use_uvloop", False)}
    anyio.run(serve, side, sys.stdin, answers, backend_options=options)


if __name__ == "__main__":
    main()
