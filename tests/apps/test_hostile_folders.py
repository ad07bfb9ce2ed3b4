"""Beside a server of a hostile folder's own requests, its plain streams go on and health answers.

The folders are those of `tests.checkpoints.hostile_folders`; the law that of
`test_heavy_requests`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.chaos.heavy import CHAT
from tests.apps.chaos.place import Place, said, started
from tests.apps.test_heavy_requests import BYSTANDERS, LAW, WIDE, Watch
from tests.checkpoints.hostile_folders import FOLDERS, make

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

OPENED = {name: each for name, each in FOLDERS.items() if not each.refused}
QUICK = ("template: slow calls", "digits of Cohere")
SECONDS = 2.0


@contextmanager
def asking(place: Place, name: str) -> Iterator[list[str]]:
    """Ask what is hostile on four connections; return the errors."""
    over, hostile = threading.Event(), FOLDERS[name]
    errors: list[str] = []
    chat: dict[str, Any] = {"model": "demo", "messages": said(hostile.text), "max_tokens": 2}
    tokens: dict[str, Any] = {"model": "demo", "prompt": hostile.text}
    if hostile.template is not None:
        tokens = {"model": "demo", "messages": said(hostile.text)}

    def ask(path: str, body: dict[str, Any]) -> None:
        while not over.is_set():
            with suppress(OSError, ValueError):
                status, got = place.post(path, body)
                if status != 200:
                    errors.append(json.dumps(got)[:600])
            over.wait(0.05)

    asked = [(CHAT, chat), ("/tokenize", tokens)] * 2
    threads = [threading.Thread(target=ask, args=one, daemon=True) for one in asked]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        over.set()
        for thread in threads:
            thread.join(15)


def seen(name: str, folder: Path, seconds: float = SECONDS) -> tuple[float, float, list[str]]:
    """Return the longest wait of a bystander, the time of an end amid it, and the errors."""
    watch = Watch()
    with started("--model", str(make(name, folder))) as place:
        with asking(place, name) as errors:
            with watch.watching(BYSTANDERS["completion"], place):
                time.sleep(seconds)
            begun = time.monotonic()
            os.kill(place.pid, signal.SIGTERM)
            while is_alive(place.pid) and time.monotonic() - begun < 60:
                time.sleep(0.01)
            ended = time.monotonic() - begun
    return watch.wait, ended, errors


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.gate
@pytest.mark.parametrize("name", QUICK)
def test_the_quick_ones(name: str, tmp_path: Path) -> None:
    wait, ended, errors = seen(name, tmp_path, 1.0)
    assert wait < WIDE
    assert ended < 20
    assert not any("private words" in error for error in errors)


@pytest.mark.soak
@pytest.mark.parametrize("name", OPENED)
def test_each(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []  # the least of three: what the machine does beside strikes one of them
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        found.append(seen(name, tmp_path / str(number)))
        if found[-1][0] <= LAW and found[-1][1] <= 2:
            break
    with capsys.disabled():
        figures = [(round(1000 * wait), round(1000 * ended)) for wait, ended, _ in found]
        print(f"\n{name}: waits and ends of {figures} ms", end="")  # noqa: T201
    assert min(wait for wait, _, _ in found) <= LAW
    assert min(ended for _, ended, _ in found) <= 2
