"""Serve the program of a peer: lines of JSON on standard input and output.

``python protocol.py FILE:CLASS THREADS`` runs in the environment of the peer, which has its library
and nothing of ours, so this is plain Python. The class has two operations. An exception is answered
as an error, and the next line is served:

``{"do": "load", "with": {...}}`` opens a model; :class:`Task` lists its arguments. It is answered
with facts about the program, at least ``{"version": ...}``.

``{"do": "run", "with": {"requests": [{"prompt": [ids], "new_tokens": n, "arrival": s}, ...]}}``
answers greedily, without an end of sequence, and with ``times`` and ``tokens``: of each request
when each token was there, in seconds since the run began, and its id.

A library that is called step by step has ``prepare``, ``add`` and ``step`` in the place of ``run``,
and :func:`drive` runs it. A file may have a function ``environment(threads)``, which returns
variables that libraries read when they start.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from time import perf_counter, sleep
from typing import IO, TYPE_CHECKING, Any, NotRequired, Protocol, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType


HERE = Path(__file__).resolve().parent
PR_SET_PDEATHSIG = 1


class Task(TypedDict):
    """Arguments of ``load``.

    Attributes:
        folder: Checkpoint in Hugging Face layout.
        dtype: Type to compute in, ``float32`` or ``bfloat16``.
        threads: Compute threads.
        streams: Most requests at a time.
        length: Most tokens of a request, prompt and answer.
        cache_bytes: Memory for keys and values, in ``dtype``.
        work: Folder of converted files, which programs share.
        weights: Format to pack weights to; absent: they stay as they are.
    """

    folder: str
    dtype: str
    threads: int
    streams: int
    length: int
    cache_bytes: int
    work: str
    weights: NotRequired[str]


class Request(TypedDict):
    """Request for one answer.

    Attributes:
        prompt: Token ids.
        new_tokens: Length of the answer.
        arrival: Seconds after the start of the run.
    """

    prompt: list[int]
    new_tokens: int
    arrival: float


class Answers(TypedDict):
    """Times (seconds since the start of the run) and ids of the tokens of each request."""

    times: list[list[float]]
    tokens: list[list[int]]


class StepEngine(Protocol):
    """Library whose caller makes the steps."""

    def prepare(self, requests: list[Request]) -> None:
        """Reserve memory for the requests; no clock runs yet."""

    def add(self, index: int, prompt: list[int], new_tokens: int) -> None:
        """Take a request; ``index`` counts those of a run from 0."""

    def step(self) -> Iterable[tuple[int, list[int]]]:
        """Make one step: for each request that got tokens, its index and their ids."""


def drive(engine: StepEngine, requests: list[Request]) -> Answers:
    """Answer ``requests`` with a library that is called step by step."""
    order = sorted(range(len(requests)), key=lambda index: requests[index]["arrival"], reverse=True)
    answers = Answers(times=[[] for _ in requests], tokens=[[] for _ in requests])
    running: set[int] = set()
    engine.prepare(requests)
    start = perf_counter()
    while order or running:
        while order and requests[order[-1]]["arrival"] <= perf_counter() - start:
            index = order.pop()
            engine.add(index, requests[index]["prompt"], requests[index]["new_tokens"])
            running.add(index)
        if not running:
            sleep(max(0.0, requests[order[-1]]["arrival"] - (perf_counter() - start)))
            continue
        for index, ids in engine.step():
            now = perf_counter() - start
            answers["times"][index] += [now] * len(ids)
            answers["tokens"][index] += ids
            if len(answers["tokens"][index]) >= requests[index]["new_tokens"]:
                running.discard(index)
    return answers


def serve(peer: Any, requests: IO[str], answers: IO[str]) -> None:
    """Answer lines with the operations of ``peer`` until there are no more."""
    while line := requests.readline():
        asked = json.loads(line)
        answer: dict[str, object]
        try:
            if asked["do"] == "run" and not hasattr(peer, "run"):
                answer = {"result": drive(peer, asked["with"]["requests"])}
            else:
                answer = {"result": getattr(peer, asked["do"])(**asked["with"])}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def load_program(name: str) -> ModuleType:
    """Import the file of that name beside this one, whatever packages share its name."""
    # In that file, `import vllm` must find the library and not the file.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]
    spec = importlib.util.spec_from_file_location(f"peer_{name}", HERE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def end_with_parent() -> None:
    """Let the system kill this process with its parent, which may have stopped it (Linux)."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError):
        return


def main() -> None:
    """Serve the class named on the command line."""
    end_with_parent()
    file, _, name = sys.argv[1].partition(":")
    module = load_program(file)
    wanted: dict[str, str] = getattr(module, "environment", lambda threads: {})(int(sys.argv[2]))
    if any(os.environ.get(variable) != value for variable, value in wanted.items()):
        # The loader and OpenMP read the environment once, when a process starts.
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    # Output of libraries must not appear between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(getattr(module, name)(), sys.stdin, answers)
    # Threads of a library must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
