"""Nobody can stop, starve, or fill the server: clients of all kinds at a process of its own.

The small storm runs in plain ``pytest``; ``-m soak`` has one of ten minutes, and says what it saw.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from statistics import median

import pytest

import asyncgen
from tests.apps.chaos.good import doors_of, learn, over_websocket
from tests.apps.chaos.mortal import EXPLOSIVE
from tests.apps.chaos.place import ENDLESS, Ask, Place, ask, free_ports, started, wait_for
from tests.apps.chaos.storm import Crowd, Storm
from tests.apps.websocket.cutting import CuttingProxy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at a process in /proc")

MORTAL = "tests.apps.chaos.mortal"
EXPLOSIVE_STEP = {"type": "Split", "pattern": {"Regex": EXPLOSIVE}, "behavior": "Isolated"}


@pytest.fixture
def explosive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bundled model with a tokenizer that panics at some texts, and else is the same."""
    monkeypatch.setenv("RUST_BACKTRACE", "0")
    folder = tmp_path / "explosive"
    shutil.copytree(Path(asyncgen.__file__).parent / "demo", folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["pre_tokenizer"]["pretokenizers"].insert(0, {**EXPLOSIVE_STEP, "invert": False})
    file.write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.gate
def test_a_small_storm_a_kill_and_a_death(explosive: Path) -> None:
    ports = free_ports()
    with ExitStack() as stack:
        place = stack.enter_context(started(ports=ports))
        learn(place)
        with CuttingProxy(place.ws_port, budget) as proxy:
            storm = Storm(place, 1, proxy.url)
            storm.rage(lambda number: number < 18)  # one of each kind
            place.let_go()
            place.wait_idle()
            threads, files = place.num_threads, place.num_files
            storm.rage(lambda number: number < 36)
        assert proxy.cuts
        place.let_go()
        place.wait_idle()
        wait_for(lambda: is_as_before(place, threads, files))
        crowd = Crowd(place)
        with crowd.asking():
            crowd.wait_for_more(4)
            os.kill(place.pid, signal.SIGKILL)
            stack.close()
            mortal = started("--model", str(explosive), ports=ports, program=MORTAL)
            place = stack.enter_context(mortal)
            crowd.wait_for_more(4)
            explode(place, crowd.place.answers)
            crowd.wait_for_more(8)
        place.wait_idle()
        die(place)


SECONDS = float(os.environ.get("ASYNCGEN_SOAK_SECONDS", "600"))
"""How long the big storm lasts; memory is compared from minute 3 on, or a third of the time."""


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("page", ["--no-chat", "--chat"])
def test_ten_minutes(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The storm; memory stays, and all is as it was before."""
    with started(page) as place, CuttingProxy(place.ws_port, budget) as proxy:
        learn(place)
        storm = Storm(place, int(time.time()), proxy.url)
        storm.rage(lambda number: number < 100)
        place.let_go()
        place.wait_idle()
        threads, files = place.num_threads, place.num_files
        began = time.monotonic()
        storm.rage(lambda _: time.monotonic() < began + SECONDS, workers=8)
        end = time.monotonic()
        place.let_go()
        place.wait_idle()
        tell(capsys, *seen(storm, began), f"cuts {proxy.cuts}")
        tell(capsys, f"threads {threads}, then {place.num_threads}")
        tell(capsys, f"open files {files}, then {place.num_files}")
        wait_for(lambda: is_as_before(place, threads, files))
    window = min(20.0, SECONDS / 20)
    early = memory_at(storm, began + min(180.0, SECONDS / 3), window)
    assert memory_at(storm, end - window, window) < 1.05 * early


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_kills_hangs_and_a_death(explosive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Servers are killed, and clients come back; texts hang; in the end the engine dies."""
    ports = free_ports()
    options = ("--model", str(explosive))
    with ExitStack() as stack:
        place = stack.enter_context(started(*options, ports=ports, program=MORTAL))
        learn(place)
        crowd = Crowd(place)
        with crowd.asking(8):
            for kill in range(8):
                crowd.wait_for_more(30)
                os.kill(place.pid, signal.SIGKILL if kill % 2 else signal.SIGTERM)
                stack.close()
                mortal = started(*options, ports=ports, program=MORTAL)
                place = stack.enter_context(mortal)
            explode(place, crowd.place.answers)
            hang(place)
            crowd.wait_for_more(30)
        place.wait_idle()
        took = die(place)
        tell(capsys, f"{crowd.num_answered} answers beside 8 kills; death told after {took:.3f} s")
        assert took < 1


def hang(place: Place) -> None:
    """Have texts hang: they fail in time, long ones are refused, and later all is well."""
    with ThreadPoolExecutor(4) as pool:
        asked = [ask(f"hang {number}", max_new_tokens=2) for number in range(4)]
        for status, got in pool.map(lambda one: place.post(one.path, one.body()), asked):
            assert status == 400 and "prepare_seconds" in got["error"]["message"]
    assert place.ask("GET", "/health") == (200, b"degraded\n")
    long = ask("a fox " * 800, max_new_tokens=1)
    assert place.post(long.path, long.body())[0] == 503
    wait_for(lambda: place.ask("GET", "/health") == (200, b"ok\n"))


def seen(storm: Storm, began: float) -> tuple[str, ...]:
    """Return the findings of a storm, in lines."""
    minutes = range(int(SECONDS / 60) + 1)
    sizes = [memory_at(storm, began + 60 * minute, 10) / 2**20 for minute in minutes]
    return (
        f"{sum(storm.counts.values())} actions: {storm.counts}",
        f"slowest /health {storm.slowest_health:.3f} s",
        f"MiB by the minute: {' '.join(f'{size:.0f}' for size in sizes)}",
    )


def tell(capsys: pytest.CaptureFixture[str], *lines: str) -> None:
    """Print figures for the release notes."""
    with capsys.disabled():
        print("", *lines, sep="\n", end="")  # noqa: T201


def memory_at(storm: Storm, start: float, seconds: float) -> float:
    """Median of the bytes in memory during some seconds."""
    found = [size for when, size in storm.memory if start <= when <= start + seconds]
    return median(found or [0])


def explode(place: Place, answers: dict[Ask, str]) -> None:
    """Have the tokenizer panic at each door: the request ends, and no other notices."""
    for length in (30, 3000):
        text = ask("a" * length)
        status, got = place.post(text.path, text.body())
        assert status == 400, got
        assert got["error"]["message"]
        for door in (f"ws://127.0.0.1:{place.ws_port}", f"ws://127.0.0.1:{place.port}/v1/stream"):
            with pytest.raises(asyncgen.InvalidRequestError):
                over_websocket(door, text)
    known, answer = next(iter(answers.items()))
    assert [door(known) for door in doors_of(place)] == [answer] * 4
    assert place.ask("GET", "/health") == (200, b"ok\n")


def die(place: Place) -> float:
    """End the thread that decodes; return after how many seconds ``/health`` says so."""
    with place.begin(ENDLESS) as wire:
        wire.recv(1)
        began = time.monotonic()
        os.kill(place.pid, signal.SIGUSR1)
        wait_for(lambda: place.ask("GET", "/health") == (503, b"the engine is dead\n"))
        took = time.monotonic() - began
        said = b""
        while piece := wire.recv(65536):  # whoever is being told something hears of it
            said += piece
    assert b'"error"' in said
    return took


def is_as_before(place: Place, threads: int, files: int) -> bool:
    """Tell whether a process holds no more than before."""
    return place.num_threads <= threads and place.num_files <= files


def budget(number: int) -> int | None:
    """Bytes that a connection carries through the relay: some come back, and go on."""
    return Random(number).choice((None, 600, 1200, 3000))
