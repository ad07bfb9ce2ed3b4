from __future__ import annotations

import io
import json
import os
import sys

import anyio
import pytest

from asyncgen_apps.bench.workers import BenchError, Worker, serve

HERE = "tests.apps.bench.test_workers"


class Echo:
    """A side that answers at once."""

    def __init__(self) -> None:
        self.is_closed = False

    async def repeat(self, text: str, times: int = 1) -> dict[str, str]:
        # Prints must not get in between the answers.
        sys.stdout.write("noise\n")
        return {"text": text * times}

    async def fail(self) -> None:
        raise ValueError("not today")

    async def crash(self) -> None:
        sys.stderr.write("the last words\n")
        sys.stderr.flush()
        os._exit(3)

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.mark.anyio
async def test_requests_are_answered_line_by_line_and_the_side_is_closed() -> None:
    asked = [{"do": "repeat", "with": {"text": "a", "times": 2}}, {"do": "fail", "with": {}}]
    requests, answers = io.StringIO("".join(json.dumps(one) + "\n" for one in asked)), io.StringIO()
    side = Echo()
    with anyio.fail_after(60):
        await serve(side, requests, answers)
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [
        {"result": {"text": "aa"}},
        {"error": "ValueError: not today"},
    ]
    assert side.is_closed


def test_a_process_answers_until_it_is_left() -> None:
    with Worker(f"{HERE}:Echo") as worker:
        assert worker.pid != os.getpid()
        assert worker.call("repeat", text="é", times=3) == {"text": "ééé"}
        with pytest.raises(BenchError, match=r"Echo\.fail: ValueError: not today"):
            worker.call("fail")
        assert worker.call("repeat", text="still here") == {"text": "still here"}


def test_a_process_that_dies_says_its_last_words() -> None:
    with Worker(f"{HERE}:Echo") as worker:
        with pytest.raises(BenchError, match="the process ended: the last words"):
            worker.call("crash")
        with pytest.raises(BenchError, match="the process ended"):
            worker.call("repeat", text="a")


def test_an_error_outside_ends_the_process() -> None:
    with pytest.raises(KeyboardInterrupt), Worker(f"{HERE}:Echo") as worker:
        worker.call("repeat", text="a")
        raise KeyboardInterrupt
    assert worker._process.poll() is not None
