"""What code of a user leaves behind or raises stays with it: neighbours get the same tokens.

Rows are what it does, columns the kinds of code and the ways to ask an engine.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch
from anyio.from_thread import start_blocking_portal

import asyncgen
from asyncgen.runtime.thread_state import read_state
from tests.cases import for_each
from tests.left_behind import LEFT, RAISED, seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.left_behind import Leave


@dataclass
class Culprit:
    """Code that leaves something behind.

    Attributes:
        leave: Called by each call of it, or the first.
        is_done: Set when the neighbours have got everything.
        calls: How often it was called.
    """

    leave: Leave
    is_done: threading.Event = field(default_factory=threading.Event)
    calls: int = 0

    def __call__(self) -> None:
        self.calls += 1
        self.leave()


def processor(culprit: Culprit) -> dict[str, Any]:
    def process(input_ids: Any, scores: Any) -> Any:
        made = scores + 1.0
        culprit()
        return made

    return {"logits_processor": [process]}


def criterion(culprit: Culprit) -> dict[str, Any]:
    def ends(input_ids: Any, scores: Any, **_: Any) -> Any:
        verdict = torch.zeros(len(input_ids), dtype=torch.bool)
        culprit()
        return verdict

    return {"stopping_criteria": [ends]}


def prefix(culprit: Culprit) -> dict[str, Any]:
    def allowed(index: int, ids: Any) -> list[int]:
        culprit()
        return [*range(100)]

    return {"prefix_allowed_tokens_fn": allowed}


def beams(culprit: Culprit) -> dict[str, Any]:
    return processor(culprit) | {"num_beams": 2}


def streamer(culprit: Culprit) -> dict[str, Any]:
    class Streamer:
        def put(self, value: Any) -> None:
            culprit()

        def end(self) -> None:
            culprit()

    return {"streamer": Streamer()}


def generator(culprit: Culprit) -> dict[str, Any]:
    """A method that is suspended with what it left, until the neighbours are served."""

    def method(model: Any, input_ids: Any, generation_config: Any, **_: Any) -> Iterator[Any]:
        before = read_state()
        culprit()
        own: Any = read_state()
        if own == before:
            own = None  # nothing that a state tells
        for number in range(400):
            yield [5]
            assert own is None or read_state() == own, "it has another state"
            if culprit.is_done.is_set() and number > 3:
                return

    return {"custom_generate": method, "max_new_tokens": 400}


def function(culprit: Culprit) -> dict[str, Any]:
    def method(model: Any, input_ids: Any, generation_config: Any, **_: Any) -> Any:
        result = torch.cat((input_ids, input_ids.new_full((1, 3), 5)), dim=1)
        culprit()
        return result

    return {"custom_generate": method}


KINDS = (processor, criterion, prefix, beams, streamer, generator, function)


def watching(clean: list[Any]) -> Callable[..., Any]:
    """A processor that demands the state of the first call of its kind in every later one."""

    def process(input_ids: Any, scores: Any) -> Any:
        found = seen()
        clean[:] = clean or [found]
        assert found == clean[0]
        return scores

    return process


def neighbours(clean: list[Any]) -> list[dict[str, Any]]:
    """Requests in the batch and beside it, of which some look at the state."""
    return [
        {"max_new_tokens": 8, "temperature": 0.8, "top_p": 0.9, "seed": 3},
        {"max_new_tokens": 6, "do_sample": False, "logits_processor": [watching(clean)]},
        {"max_new_tokens": 4, "num_beams": 2, "seed": 5},
    ]


@dataclass
class Bench:
    """An engine, the tokens of neighbours alone, and the state that they saw.

    Attributes:
        ask: Returns the completion of a request, on any thread but the engine's.
        ask_within: The same on the engine's thread, which does not return.
    """

    ask: Callable[..., asyncgen.Completion]
    ask_within: Callable[..., object]
    clean: list[Any] = field(default_factory=list)
    expected: list[Any] = field(default_factory=list)
    right: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.expected = self.serve()

    def serve(self) -> list[Any]:
        with ThreadPoolExecutor(3) as pool:
            return [*pool.map(self.tokens, neighbours(self.clean))]

    def tokens(self, given: dict[str, Any]) -> Any:
        return self.ask("Once upon", **given).token_ids

    def rows(self) -> dict[str, Leave]:
        return LEFT | RAISED | {"asks its engine": partial(self.ask_within, "Once")}

    def demand(self, kind: Callable[[Culprit], dict[str, Any]], row: str) -> None:
        """Serve neighbours beside a culprit, and once more behind it."""
        culprit = Culprit(self.rows()[row])
        given = {"max_new_tokens": 6, "do_sample": False, **kind(culprit)}
        error, tokens = None, None
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self.tokens, given)
            try:
                assert self.serve() == self.expected
            finally:
                culprit.is_done.set()
            try:
                tokens = asked.result()
            except Exception as raised:
                error = raised
        assert culprit.calls
        if row not in LEFT:
            assert error is not None
        if kind is generator and tokens is not None:
            tokens = set(tokens)  # how many there are depends on the neighbours
        if error is None:
            assert tokens == self.right.setdefault(kind.__name__, tokens)
        assert not isinstance(error, asyncgen.EngineDiedError)
        assert self.serve() == self.expected


@contextmanager
def threads() -> Iterator[Bench]:
    """An engine that threads ask."""
    with asyncgen.LLM("demo", num_threads=1) as llm:
        yield Bench(llm.generate, llm.generate)


@contextmanager
def loop(backend: str) -> Iterator[Bench]:
    """An engine that tasks of a loop ask."""
    with start_blocking_portal(backend) as portal:
        llm = asyncgen.AsyncLLM("demo", num_threads=1)
        with portal.wrap_async_context_manager(llm):
            yield Bench(
                lambda text, **given: portal.call(partial(llm.generate, text, **given)),
                lambda text: anyio.run(llm.generate, text, backend=backend),
            )


WAYS = {"sync": threads, "asyncio": partial(loop, "asyncio"), "trio": partial(loop, "trio")}

WORST = (
    (generator, "inference mode"),
    (generator, "default device"),
    (processor, "function mode"),
    (criterion, "precision"),
)
"""The others are at the gate."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with threads() as bench:
        yield bench


@for_each("kind, row", WORST)
def test_what_code_leaves_behind_reaches_no_neighbour(bench: Bench, kind: Any, row: str) -> None:
    bench.demand(kind, "nothing")
    bench.demand(kind, row)


@pytest.mark.gate
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_whole_table(way: str, kind: Any) -> None:
    open_bench: Any = WAYS[way]
    with open_bench() as bench:
        for row in bench.rows():
            try:
                bench.demand(kind, row)
            except BaseException as error:
                error.add_note(f"the row: {row}")
                raise
