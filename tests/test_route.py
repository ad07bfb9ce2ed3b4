"""Count the code that a sampled request passes, with a profile of one on the bundled model.

Counts do not depend on how busy the machine is. A change that makes the way longer fails here; a
feature that a request does not use adds nothing to it.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

import asyncgen
from asyncgen.engine.core import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(asyncgen.__file__).parents[1]
OWN = tuple(f"{ROOT / name}/" for name in ("asyncgen", "streamers"))
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 1}

HAS_KERNELS = asyncgen.cpu_kernels() != "torch"

MOST_FILES = 48 if HAS_KERNELS else 59
"""Files of a request of 16 tokens, from ``llm.stream`` to its result.

Our own kernels compute all layers in one call; torch's are called layer by layer.
"""

MOST_FUNCTIONS = 280 if HAS_KERNELS else 325
"""Distinct functions of the same request, without lambdas and comprehensions."""

MOST_CHANGES = 160 if HAS_KERNELS else 195
"""Changes of file in the order in which each thread calls functions for the first time."""

MOST_CALLS = 96 if HAS_KERNELS else 200
"""Python calls of a decode step of one row."""

UNUSED = (
    "asyncgen/engine/lane/",
    "asyncgen/engine/requests/conversation.py",
    "asyncgen/engine/requests/pooling.py",
    "asyncgen/engine/requests/resume.py",
    "asyncgen/engine/sampling/logprobs.py",
    "asyncgen/engine/sampling/prompt_logprobs.py",
    "asyncgen/generation/strategies/",
    "asyncgen/reference/continuous_batching/",
    "asyncgen/structured/",
    "asyncgen/text/chat_template.py",
    "asyncgen/text/tool_calls/",
)
"""Files and folders of features that the request does not use."""


class Profile:
    """Calls of functions of ours, by file and name, and their first calls in each thread."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.first: dict[int, dict[tuple[str, str], None]] = {}
        self.counts = False

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        code = frame.f_code
        if self.counts and event == "call" and code.co_filename.startswith(OWN):
            where = str(Path(code.co_filename).relative_to(ROOT)), code.co_qualname
            self.calls[where] += 1
            if not code.co_name.startswith("<"):
                self.first.setdefault(threading.get_ident(), {})[where] = None

    @contextmanager
    def counting(self, *, here: bool) -> Iterator[None]:
        """Count in the threads that were started since, and in this one if asked."""
        self.calls.clear()
        self.first.clear()
        self.counts = True
        if here:
            sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            self.counts = False


@contextmanager
def profile() -> Iterator[Profile]:
    """A profile of all threads that start meanwhile."""
    found = Profile()
    threading.setprofile(found)
    try:
        yield found
    finally:
        threading.setprofile(None)


async def answer(llm: asyncgen.AsyncLLM, new_tokens: int) -> None:
    """One sampled request, read as text, with its result."""
    async with llm.stream("Once upon a time", max_new_tokens=new_tokens, **SAMPLED) as stream:
        async for _ in stream:
            pass
    assert len(stream.result.token_ids) == new_tokens


@pytest.fixture(scope="module")
def route() -> Profile:
    """Take the shortest way of six requests: one whose reader comes late waits once more."""

    async def main() -> None:
        async with asyncgen.AsyncLLM("demo") as llm:
            await answer(llm, 8)  # imports, and objects that are made once for all requests
            with found.counting(here=True):
                await answer(llm, 16)

    ways = []
    for _ in range(6):
        with profile() as found:
            anyio.run(main)
        ways.append(found)
    return min(ways, key=changes_of_file)


def changes_of_file(route: Profile) -> int:
    """Count the changes of file in the order of first calls."""
    ways = route.first.values()
    return sum(one[0] != other[0] for order in ways for one, other in pairwise(order))


def test_files_of_a_request(route: Profile) -> None:
    files = sorted({file for file, _ in route.calls})
    assert len(files) <= MOST_FILES, "\n".join([f"{len(files)} files", *files])


def test_functions_of_a_request(route: Profile) -> None:
    functions = sorted({where for order in route.first.values() for where in order})
    assert len(functions) <= MOST_FUNCTIONS, "\n".join(map(" ".join, functions))


def test_changes_of_file_of_a_request(route: Profile) -> None:
    assert changes_of_file(route) <= MOST_CHANGES


def test_unused_features_add_no_file(route: Profile) -> None:
    files = {file for file, _ in route.calls}
    assert not {file for file in files if file.startswith(UNUSED)}


def test_calls_of_a_decode_step(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Engine.step
    after: list[Counter[tuple[str, str]]] = []

    def counted(engine: Engine) -> None:
        step(engine)
        after.append(found.calls.copy())

    async def main() -> None:
        async with asyncgen.AsyncLLM("demo") as llm:
            await answer(llm, 8)
            with found.counting(here=False):
                await answer(llm, 60)

    monkeypatch.setattr(Engine, "step", counted)
    with profile() as found:
        anyio.run(main)
    first, last = after[-50], after[-10]
    calls = last - first
    per_step = calls.total() / 40
    most = [f"{count / 40:.1f} {file} {name}" for (file, name), count in calls.most_common()]
    assert per_step <= MOST_CALLS, "\n".join([f"{per_step:.1f} calls", *most])
