from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.bench.peers.programs import protocol
from asyncgen_apps.bench.peers.programs.protocol import drive, load_program, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen_apps.bench.peers.programs.protocol import Request


class Clock:
    """Time that passes in steps of the engine and while the driver sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Scripted:
    """A library that is stepped: a step takes a second, and gives each request one token."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.added: list[tuple[int, float]] = []
        self.left: dict[int, int] = {}
        self.prepared = 0

    def prepare(self, requests: list[Request]) -> None:
        self.prepared = len(requests)
        self.clock.now += 50

    def add(self, index: int, prompt: list[int], new_tokens: int) -> None:
        self.added.append((index, self.clock.now - 150))
        self.left[index] = new_tokens

    def step(self) -> Iterator[tuple[int, list[int]]]:
        assert self.left, "nobody waits"
        self.clock.now += 1
        for index in list(self.left):
            self.left[index] -= 1
            if not self.left[index]:
                del self.left[index]
            yield index, [index]


def request(new_tokens: int, arrival: float = 0.0) -> Request:
    return {"prompt": [1], "new_tokens": new_tokens, "arrival": arrival}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(protocol, "perf_counter", made)
    monkeypatch.setattr(protocol, "sleep", made.sleep)
    return made


def test_requests_are_added_when_they_arrive(clock: Clock) -> None:
    engine = Scripted(clock)
    answers = drive(engine, [request(1, 5.0), request(3), request(2, 1.5)])
    assert engine.prepared == 3
    assert engine.added == [(1, 0.0), (2, 2.0), (0, 5.0)]
    assert answers["times"] == [[6.0], [1.0, 2.0, 3.0], [3.0, 4.0]]
    assert answers["tokens"] == [[0], [1, 1, 1], [2, 2]]
    assert clock.slept == [1.0]  # between the end of all and the last arrival


class Stepped(Scripted):
    def load(self, factor: int) -> dict[str, int]:
        return {"doubled": 2 * factor}


class Whole:
    def run(self, requests: list[Any]) -> dict[str, int]:
        return {"count": len(requests)}


def conversation(peer: Any, *lines: dict[str, Any]) -> list[dict[str, Any]]:
    asked, answers = io.StringIO("".join(json.dumps(one) + "\n" for one in lines)), io.StringIO()
    serve(peer, asked, answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_lines_are_answered_one_by_one(clock: Clock) -> None:
    said = conversation(
        Stepped(clock),
        {"do": "load", "with": {"factor": 4}},
        {"do": "load", "with": {}},
        {"do": "run", "with": {"requests": [request(1)]}},
        {"do": "dance", "with": {}},
    )
    assert said[0] == {"result": {"doubled": 8}}
    assert "missing 1 required positional argument: 'factor'" in said[1]["error"]
    assert said[2] == {"result": {"times": [[1.0]], "tokens": [[0]]}}
    assert said[3]["error"].startswith("AttributeError:")


def test_library_with_its_run_method_runs_requests_itself() -> None:
    (said,) = conversation(Whole(), {"do": "run", "with": {"requests": [1, 2]}})
    assert said == {"result": {"count": 2}}


def test_a_program_does_not_stand_before_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    here = str(Path(protocol.__file__).parent)
    monkeypatch.setattr(sys, "path", [here, *sys.path])
    module = load_program("vllm")
    assert module.__name__ == "peer_vllm" and hasattr(module, "Engine")
    assert here not in sys.path
