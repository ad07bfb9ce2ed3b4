"""A program of a contender for tests: its classes answer, fail, die or fall silent as told.

Lies beside a copy of ``protocol.py`` when it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Good:
    """Answers every request with the token 7, one each hundredth of a second."""

    def load(self, **task: Any) -> dict[str, str]:
        self._log = Path(task["work"]) / "log"
        self._note("load", [task["threads"], task.get("weights")])
        return {"version": "1.0"}

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        sys.stdout.write("noise\n")
        self._note("run", [one["prompt"] for one in requests])
        new = [one["new_tokens"] for one in requests]
        return {
            "times": [[0.01 * (number + 1) for number in range(count)] for count in new],
            "tokens": [[7] * count for count in new],
        }

    def _note(self, what: str, value: object) -> None:
        with self._log.open("a") as log:
            log.write(json.dumps([type(self).__name__, what, value]) + "\n")


class Other(Good):
    """The same by another name."""


class Short(Good):
    """Stops a token early."""

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        got = super().run(requests)
        return {name: [one[:-1] for one in got[name]] for name in got}


class Unloadable(Good):
    """Cannot load."""

    def load(self, **task: Any) -> dict[str, str]:
        raise MemoryError("too large")


class Dying(Good):
    """Ends in every run that is not of four tokens, as a warm-up is."""

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        if requests[0]["new_tokens"] == 4:
            return super().run(requests)
        sys.stderr.write("illegal instruction\n")
        sys.stderr.flush()
        os._exit(4)


class Silent(Good):
    """Never answers, and has a child that does not, either."""

    def load(self, **task: Any) -> dict[str, str]:
        loaded = super().load(**task)
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        self._note("child", child.pid)
        return loaded

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        time.sleep(600)
        raise AssertionError


class Environment(Good):
    """Tells which variables it has."""

    def load(self, **task: Any) -> dict[str, str]:
        return dict(os.environ)


def environment(threads: int) -> dict[str, str]:
    return {"ASKED_FOR": f"{threads} threads"}
