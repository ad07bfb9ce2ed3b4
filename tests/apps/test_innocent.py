"""Measure the delay of an innocent stream's next token while another client attacks.

Each attack is compared with as many rows as it leaves in the batch, of one client that behaves; for
long prompts, with one such prompt at a time, which fills the steps as well. The rounds alternate,
and medians are compared: other work on the machine strikes both. The attacker is a process of its
own, which computes only while nobody else wants to.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.chaos.place import PATIENCE, head, started

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="has priorities of processes"),
]

ROUNDS, TOKENS = 5, 300
PAIRS = (
    ("8 x n=128", "63 rows"),
    ("priority", "8 rows"),
    ("beams", "63 rows"),
    ("long prompts", "a long prompt"),
    ("huge prompts", "nothing"),
    ("endless heads", "nothing"),
    ("450 silent", "nothing"),
    ("logit_bias", "nothing"),
    ("template bombs", "nothing"),
    ("slow bodies", "nothing"),
)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that knows two clients."""
    with started("--api-key", "a", "--api-key", "b", "--allow-priority") as place:
        yield place.port


@pytest.mark.parametrize(("attack", "peace"), PAIRS)
def test_the_next_token_comes(
    port: int, attack: str, peace: str, capsys: pytest.CaptureFixture[str], record_property: Any
) -> None:
    found: dict[str, list[tuple[float, ...]]] = {attack: [], peace: []}
    did: dict[str, int] = {}
    for _ in range(ROUNDS):
        for name in (peace, attack):
            with beside(name, port, did if name == attack else {}):
                found[name].append(gaps_of_a_stream(port))
    figures = {
        name: [1000 * median(column) for column in zip(*rounds, strict=True)]
        for name, rounds in found.items()
    }
    lines = [
        f"{name:>16}: p50 {p50:6.1f} ms, p99 {p99:6.1f} ms, longest {longest:6.1f} ms, "
        f"first token {first:6.1f} ms"
        for name, (p50, p99, longest, first) in figures.items()
    ]
    ratio = figures[attack][1] / figures[peace][1]
    with capsys.disabled():
        print("", *lines, f"p99 x {ratio:.2f}; did {did}", sep="\n", end="")  # noqa: T201
    record_property(attack, figures[attack])
    record_property(peace, figures[peace])
    assert ratio <= 3


@contextmanager
def beside(name: str, port: int, did: dict[str, int]) -> Iterator[None]:
    """Have somebody act for as long as the block does; say what was done."""
    command = [sys.executable, "-m", "tests.apps.chaos.attacks", name, str(port), "a"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        try:
            time.sleep(1.5)  # it has begun, and what it holds is held
            yield
        finally:
            told, _ = process.communicate(timeout=PATIENCE)
    for what, number in json.loads(told).items():
        did[what] = did.get(what, 0) + number
    wait_until_idle(port)


def wait_until_idle(port: int) -> None:
    """Wait until nothing is left of who was there."""
    end = time.monotonic() + PATIENCE
    while True:
        wire = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        wire.request("GET", "/metrics", headers={"Authorization": "Bearer b"})
        lines = wire.getresponse().read().decode().splitlines()
        wire.close()
        kinds = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        if all(line.endswith(" 0.0") for line in lines if line.startswith(kinds)):
            return
        assert time.monotonic() < end
        time.sleep(0.05)


def gaps_of_a_stream(port: int) -> tuple[float, ...]:
    """Read a stream; return median, 99th percentile and maximum of its gaps, and its beginning."""
    asked = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS, "seed": 1, "stream": True}
    body = json.dumps({"model": "demo", "prompt": "The sea", **asked}).encode()
    times = []
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as wire:
        began = time.monotonic()
        wire.sendall(head("/v1/completions", len(body), "Authorization: Bearer b") + body)
        said = b""
        while b"[DONE]" not in said[-100:]:
            piece = wire.recv(65536)
            assert piece, said[-1000:]
            said += piece
            times.append(time.monotonic())
    assert said.startswith(b"HTTP/1.1 200 "), said[:1000]
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    return median(gaps), quantiles(gaps, n=100)[98], max(gaps), times[0] - began
