"""The command: items one after another in processes of their own, within a time."""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from tests.device.plan import Item, Pace, items_for, keep_to
from tests.device.report import Report
from tests.device.worker import serve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main", "run"]

ROOT = Path(__file__).parents[2]

PATIENCE = 4.0
"""An item that takes so many times as long as said is ended, and later on a slow machine."""

LEAST = 60.0
"""Seconds that any item may take."""

START = 90.0
"""Seconds more for the first item of a process, which loads libraries, from a cold disk maybe."""

FINISH = 3.0
"""Seconds kept for the end."""


class Process:
    """A process that answers items, and its replacement when it has died."""

    def __init__(self, device: str) -> None:
        """Nothing is started yet."""
        self._device = device
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._orders: Any = None
        self._group = ""

    def find_out(self, item: Item, seconds: float) -> dict[str, Any]:
        """The answer of an item, which has so many seconds; never raises."""
        if self.is_new_for(item):
            self.end()
            self._orders, theirs = self._context.Pipe()
            self._process = self._context.Process(target=serve, args=(theirs, self._device))
            self._process.start()
            theirs.close()
            self._group = item.group
        start = perf_counter()
        try:
            self._orders.send((item, time() + seconds))
            if self._orders.poll(seconds):
                answer: dict[str, Any] = self._orders.recv()
                return answer
            said = f"ended after {seconds:.0f} s"
        except (EOFError, OSError):
            self._process.join(5)
            said = f"its process ended with {self._process.exitcode}"
        self._kill()
        return {"verdict": "error", "says": said, "seconds": perf_counter() - start}

    def is_new_for(self, item: Item) -> bool:
        """Tell whether an item waits for a process to start."""
        return self._process is None or item.group != self._group

    def end(self) -> None:
        """Let the process go, at once if it does not go by itself."""
        if self._process is None:
            return
        try:
            self._orders.send(None)
        except OSError:
            pass
        self._process.join(10)
        self._kill()

    def _kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._orders.close()
        self._process = None


def run(
    items: Sequence[Item],
    report: Report,
    *,
    device: str,
    seconds: float,
    say: Callable[[str], object],
) -> None:
    """Find out one item after another, for so long.

    Args:
        items: In order.
        report: Takes the answers.
        device: ``cuda`` or ``cpu``.
        seconds: Time for all of them.
        say: Is told a line an item.
    """
    end = perf_counter() + seconds - FINISH
    left, pace, process = list(items), Pace(), Process(device)
    try:
        # What does not fit now may do so later, when others took less than was said.
        while kept := keep_to(left, end - perf_counter(), pace.factor):
            item = kept[0]
            left.remove(item)
            allowed = max(item.seconds * max(pace.factor, 1.0) * PATIENCE, LEAST)
            allowed += START * process.is_new_for(item)
            answer = process.find_out(item, min(allowed, end - perf_counter()))
            pace.add(item, answer["seconds"])
            report.add(item, answer)
            say(f"{item.name}: {answer['verdict']}: {answer['says']} ({answer['seconds']:.1f} s)")
            if item.section == "machine" and answer["verdict"] == "error":
                return
        for item in left:
            report.add(item, {"verdict": "left out", "says": "no time"})
            say(f"{item.name}: left out: no time")
    finally:
        process.end()


def main(arguments: Sequence[str] | None = None, say: Callable[[str], object] = print) -> int:
    """Run the command.

    Args:
        arguments: Its arguments; ``None`` for those of the process.
        say: Is told what happens, a line at a time.

    Returns:
        Exit status: 1 where something does not hold.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0, help="time for everything (8)")
    parser.add_argument(
        "--out", type=Path, default=Path("device-check"), help="folder of the report"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where (cuda)")
    parser.add_argument(
        "--shape",
        action="append",
        choices=("5m", "135m", "1b", "8b"),
        help="networks whose speed is measured, the first is the main one (8b, 1b)",
    )
    parser.add_argument("--only", action="append", help="items whose names begin so")
    given = parser.parse_args(arguments)
    shapes = given.shape or ["8b", "1b"]
    items = items_for(shapes, given.device)
    if given.only:
        items = [item for item in items if item.name.startswith(tuple(given.only))]
        if not items:
            parser.error(f"--only {' '.join(given.only)}: no item begins so")
    settings = {"device": given.device, "shapes": " ".join(shapes), "minutes": given.minutes}
    report = Report(given.out, settings)
    # Children find the project as this process does, whatever the folder they start in.
    paths = [str(ROOT), str(ROOT / "apps"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    run(items, report, device=given.device, seconds=60 * given.minutes, say=say)
    say(f"{given.out / 'report.md'}: {report.num_wrong} items do not hold")
    return 1 if report.num_wrong else 0
