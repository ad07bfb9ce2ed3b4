"""How much code a request passes, counted by a profile of one on the bundled model.

Counts do not depend on how busy the machine is. A change that makes the way longer says so here.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import asyncgen
from asyncgen.engine.core import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

ROOT = Path(asyncgen.__file__).parents[1]
OWN = tuple(f"{ROOT / name}/" for name in ("asyncgen", "streamers"))
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 1}

SINCE = {
    "preparing": "the engine's own threads make requests ready, within a time",
    "models/config/live": "model.config can be written to",
    "generation/config/plain": "numbers of numpy and torch are taken",
    "face": "LLM and AsyncLLM are two faces of one engine",
    "answer": "their streams are one kind of answer",
    "waiting": "which a task or a thread waits for",
    "sample_builder": "what a stream keeps of a sample, once a part of it",
    "sequence_text": "the text of a sample, that may have begun elsewhere",
    "engine/scheduling/groups": "layers hold as much of a text as they see",
    "engine/requests/conversation": "what an answer is read with: tools, thoughts, a shape",
    "engine/scheduling/books": "who waits and runs is kept apart from who runs next",
    "engine/scheduling/step_plan": "what a step computes is apart from who has a turn",
    "engine/scheduling/keys": "pages that are full, and those that are not, have names",
    "engine/scheduling/tails": "the last page of a text serves who goes on from it",
    "engine/scheduling/snapshots": "what a text begins with is asked of its states as well",
    "engine/prompt_pace": "of a burst several chunks are read between two tokens of a stream",
    "models/config/model_config": "a model whose tokens see later ones is refused",
}
"""What made the way longer since it was first counted, and why."""

MOST_FILES = (45 if asyncgen.cpu_kernels() != "torch" else 56) + len(SINCE)
"""Files of a sampled request, from ``llm.stream`` to its last token and its result.

Our own kernels compute all blocks in one call. Where torch computes them, attention over pages is
six files more, and what a block is made of another five.
"""

MOST_CALLS = 150 if asyncgen.cpu_kernels() != "torch" else 220
"""Python calls of a decode step of one row."""


class Profile:
    """Counts calls of functions of ours, by file and name."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.counts = False

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        code = frame.f_code
        if self.counts and event == "call" and code.co_filename.startswith(OWN):
            name = str(Path(code.co_filename).relative_to(ROOT))
            self.calls[name, code.co_qualname] += 1

    @contextmanager
    def counting(self, *, here: bool) -> Iterator[None]:
        """Count in the threads that were started since, and in this one if it says so."""
        self.calls.clear()
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


def test_files_of_a_request() -> None:
    async def main() -> None:
        async with asyncgen.AsyncLLM("demo") as llm:
            await answer(llm, 8)  # imports, and what is made once for all requests
            with found.counting(here=True):
                await answer(llm, 16)

    with profile() as found:
        anyio.run(main)
    files = sorted({file for file, _ in found.calls})
    assert len(files) <= MOST_FILES, "\n".join([f"{len(files)} files", *files])


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
