"""Run the processes of the contenders: one works, the others are stopped.

As many stay loaded as memory holds.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, Self

from asyncgen_apps.bench.peers.contenders import CONTENDERS
from asyncgen_apps.bench.workers import BenchError, EndedError, Worker, own_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from asyncgen_apps.bench.peers.programs.protocol import Answers, Request, Task


PROGRAMS = Path(__file__).parent / "programs"
MEMORY = Path("/proc/meminfo")
LIBRARY_BYTES = 1_500_000_000
"""Memory of a process beside weights, keys and values."""
WEIGHT_COPIES = 2.5
"""Memory that loading takes, as a multiple of the weights."""
MOST_LOSSES = 2
"""Processes of a contender that may die or be killed before it is given up."""
LOADING = 4
CHOICES = ("OMP_", "GOMP_", "KMP_", "MKL_")
"""Beginnings of the variables that configure how libraries compute."""


class Program(Worker):
    """Process of a contender, which runs only while it works on a request.

    Args:
        contender: Key of :data:`CONTENDERS`.
        python: Interpreter that has its library.
        threads: Compute threads.
        patience: Seconds that an answer may take; then the process is killed. Loading, where some
            libraries compile, may take :data:`LOADING` times as long.
    """

    def __init__(self, contender: str, python: str, threads: int, patience: float) -> None:
        one = CONTENDERS[contender]
        command = [python, str(PROGRAMS / "protocol.py"), one.program, str(threads)]
        environment = clean_environment(threads, is_ours=one.is_ours)
        super().__init__(one.program, command, environment, has_group=True)
        self._patience = patience
        self._is_overdue = False

    def __exit__(self, *error: object) -> None:
        """Kill the process and those that it started."""
        self._signal(signal.SIGKILL)
        super().__exit__(None, None, None)

    def call(self, operation: str, **arguments: object) -> dict[str, Any]:
        """Wake the process, ask for an operation, and stop it again.

        Raises:
            BenchError: The operation failed.
            EndedError: The process ended, or was killed for its silence.
        """
        self._signal(signal.SIGCONT)
        patience = self._patience * (LOADING if operation == "load" else 1)
        timer = Timer(patience, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            return super().call(operation, **arguments)
        except EndedError as error:
            self._signal(signal.SIGKILL)
            self._process.wait()
            if self._is_overdue:
                text = f"{operation}: no answer within {patience:g} s, so it was killed"
                raise EndedError(text) from error
            raise
        finally:
            timer.cancel()
            self.stop()

    def stop(self) -> None:
        """Stop the process and those that it started."""
        self._signal(signal.SIGSTOP)

    def _give_up(self) -> None:
        self._is_overdue = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and those that it started, while it is there."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


def clean_environment(threads: int, *, is_ours: bool) -> dict[str, str]:
    """Return the environment of a contender: the thread count of all, and no other setting."""
    base = own_environment()
    drop = CHOICES if is_ours else (*CHOICES, "PYTHONPATH")
    kept = {name: value for name, value in base.items() if not name.startswith(drop)}
    return {**kept, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}


class PeerProcesses:
    """Processes of the contenders at one checkpoint and data type; use as a context manager.

    Where memory does not hold all, the one that has waited longest is ended, and loads again when
    its turn comes.

    Args:
        pythons: The interpreter of each contender.
        task: Checkpoint and sizes to load.
        weight_bytes: Size of the weights in the type that is computed in.
        patience: Seconds that an answer may take.
        warm_up: Requests that each answers once it has loaded, the largest batch first.
        progress: Called with a few words about what comes next.
    """

    def __init__(
        self,
        pythons: Mapping[str, str],
        task: Task,
        weight_bytes: int,
        patience: float,
        warm_up: Sequence[list[Request]],
        progress: Callable[[str], None],
    ) -> None:
        self._pythons = pythons
        self._task = task
        self._need = int(WEIGHT_COPIES * weight_bytes) + task["cache_bytes"] + LIBRARY_BYTES
        self._patience = patience
        self._warm_up = warm_up
        self._progress = progress
        self._programs: dict[str, Program] = {}
        self._losses: dict[str, int] = {}
        self.out: dict[str, str] = {}
        """Reason that a contender takes no more part, by its name."""
        self.versions: dict[str, dict[str, str]] = {}
        """Versions that each contender reported when it had loaded."""

    def __enter__(self) -> Self:
        """Return the processes."""
        return self

    def __exit__(self, *error: object) -> None:
        """End all processes."""
        for name in list(self._programs):
            self._end(name)

    def pid(self, name: str) -> int:
        """Return the id of the process of a contender that has loaded."""
        return self._programs[name].pid

    def load(self, name: str) -> None:
        """Load a contender, unless it is loaded.

        Raises:
            BenchError: It could not load, now or earlier.
        """
        if name in self.out:
            raise BenchError(self.out[name])
        if name in self._programs:
            self._programs[name] = self._programs.pop(name)  # the last one to be ended
            return
        self._make_room()
        self._progress(f"{CONTENDERS[name].title} loads")
        program = Program(name, self._pythons[name], self._task["threads"], self._patience)
        self._programs[name] = program
        try:
            weights = CONTENDERS[name].weights
            packed = {} if weights is None else {"weights": weights}
            self.versions[name] = program.call("load", **self._task, **packed)
            for requests in self._warm_up:
                if CONTENDERS[name].takes(requests):
                    program.call("run", requests=requests)
        except BenchError as error:
            self.out[name] = str(error)
            self._end(name)
            raise

    def run(self, name: str, requests: Sequence[Request]) -> Answers:
        """Let a contender answer requests; call :meth:`load` before.

        Raises:
            BenchError: It failed. If its process is gone, the next :meth:`load` starts another, up
                to a limit.
        """
        program = self._programs[name]
        for other in self._programs.values():
            if other is not program:
                other.stop()  # again: something may have woken it meanwhile
        try:
            found: Any = program.call("run", requests=list(requests))
        except EndedError as error:
            self._end(name)
            self._losses[name] = self._losses.get(name, 0) + 1
            if self._losses[name] >= MOST_LOSSES:
                self.out[name] = f"given up after {MOST_LOSSES} lost processes: {error}"
            raise
        answers: Answers = found
        return answers

    def _make_room(self) -> None:
        """End those that have waited longest until memory holds another."""
        while self._programs and available_bytes() < self._need:
            self._end(next(iter(self._programs)))

    def _end(self, name: str) -> None:
        self._programs.pop(name).__exit__(None, None, None)


def available_bytes(file: Path = MEMORY) -> float:
    """Return the memory that a new process may take; infinite if not known."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return float("inf")
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return 1024 * float(next(found, "inf"))


@contextmanager
def busy_process() -> Iterator[None]:
    """Let another process spin on one core while the block runs."""
    code = "print('spinning', flush=True)\nwhile True: pass"
    spinning = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    try:
        assert spinning.stdout is not None
        spinning.stdout.readline()
        yield
    finally:
        spinning.kill()
        spinning.communicate()


def read_bandwidth(nbytes: int, threads: int) -> float:
    """Measure how many bytes a second this machine reads, in a process of its own.

    Args:
        nbytes: Size of the block that is read again and again.
        threads: Threads that read it.

    Raises:
        BenchError: The process failed.
    """
    command = [
        sys.executable,
        str(PROGRAMS / "protocol.py"),
        "bandwidth:MemoryReader",
        str(threads),
    ]
    with Worker(
        "bandwidth:MemoryReader", command, clean_environment(threads, is_ours=True)
    ) as worker:
        found = worker.call("measure", nbytes=nbytes, threads=threads)
    return float(found["bytes_per_second"])
