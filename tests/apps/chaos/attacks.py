"""Attack a server that another client uses: a program, ended by closing its input.

``python -m tests.apps.chaos.attacks NAME PORT KEY`` goes on for as long as its standard input is
open, at the lowest priority that there is, so that what it computes itself is in nobody's way; then
it prints what it did, as JSON.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass
class Attacker:
    """Client that attacks.

    Attributes:
        port: Of the server.
        key: Its own.
        counts: How many bytes, connections and replies of which status there were.
    """

    port: int
    key: str
    counts: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str, number: int = 1) -> None:
        """Add to a count."""
        with self._lock:
            self.counts[what] = self.counts.get(what, 0) + number

    def post(self, path: str, content: bytes) -> None:
        """Send a body, read the whole reply."""
        wire = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            wire.request("POST", path, content, headers)
            got = wire.getresponse()
            got.read()
            self.count(f"status {got.status}")
            if got.status != 200:
                self.count("bytes refused", len(content))
                time.sleep(0.01)
        finally:
            wire.close()

    def dial(self) -> socket.socket:
        """Connect."""
        wire = socket.create_connection(("127.0.0.1", self.port), 300)
        self.count("connections")
        return wire


def body(**fields: Any) -> bytes:
    """A body, of a prompt unless there are messages."""
    prompt = {} if "messages" in fields else {"prompt": "Once upon a time"}
    return json.dumps({"model": "demo", **prompt, **fields}).encode()


def say(path: str, content: bytes) -> Callable[[Attacker], None]:
    """Send one body over and over."""
    return lambda attacker: attacker.post(path, content)


def rows(number: int) -> Callable[[Attacker], None]:
    """Ask for some samples of a usual length, as anybody may."""
    return say(TEXT, body(n=number, min_new_tokens=200, max_new_tokens=200))


def long_prompt(attacker: Attacker) -> None:
    """Ask for one token behind a prompt that nobody sent before."""
    ids = [random.randrange(300, 2000) for _ in range(1000)]
    attacker.post(TEXT, body(prompt=ids, max_new_tokens=1))


def endless_head(attacker: Attacker) -> None:
    """Send 300 MB of headers, or what the server takes of them."""
    line = b"x-junk: " + b"a" * 8000 + b"\r\n"
    sent = 0
    with attacker.dial() as wire, suppress(ConnectionError):
        wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        while sent < 300_000_000:
            sent += wire.send(line)
    attacker.count("bytes taken of heads", sent)
    time.sleep(0.01)


def silence(attacker: Attacker, connections: int = 450) -> None:
    """Hold connections, and say nothing; those that are closed come back."""
    held = [attacker.dial() for _ in range(connections)]
    for wire in held:
        with suppress(ConnectionError):
            wire.recv(1)
        wire.close()


def slow_body(attacker: Attacker) -> None:
    """Send a body by single bytes."""
    head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {attacker.key}\r\n"
    with attacker.dial() as wire, suppress(ConnectionError):
        wire.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode())
        while True:
            wire.sendall(b"a")
            attacker.count("bytes of slow bodies")
            time.sleep(0.2)


def attacks() -> dict[str, tuple[Callable[[], Callable[[Attacker], None]], int]]:
    """List the attacks by name, and the number of attackers."""
    bias = {str(token): 1 for token in range(300_000)}
    bomb = [{"role": "user", "content": "{{ 'x' * 10**9 }}"}] * 60_000
    prompt = "all work and no play " * 370_000
    return {
        "8 x n=128": (lambda: rows(128), 8),
        "priority": (
            lambda: say(TEXT, body(priority=2**31, min_new_tokens=200, max_new_tokens=200)),
            8,
        ),
        "beams": (lambda: say(TEXT, body(num_beams=8, max_new_tokens=200, do_sample=False)), 8),
        "long prompts": (lambda: long_prompt, 8),
        "huge prompts": (lambda: say(TEXT, body(prompt=prompt)), 3),
        "endless heads": (lambda: endless_head, 2),
        "450 silent": (lambda: silence, 1),
        "logit_bias": (lambda: say(TEXT, body(logit_bias=bias)), 2),
        "template bombs": (lambda: say(CHAT, body(messages=bomb)), 2),
        "slow bodies": (lambda: slow_body, 200),
        # What one that behaves does.
        "7 rows": (lambda: rows(1), 7),
        "8 rows": (lambda: rows(1), 8),
        "63 rows": (lambda: rows(9), 7),
        "a long prompt": (lambda: long_prompt, 1),
        "nothing": (lambda: lambda attacker: time.sleep(3600), 1),
    }


def go_on(attacker: Attacker, act: Callable[[Attacker], None]) -> None:
    """Act for ever."""
    while True:
        try:
            act(attacker)
        except (OSError, http.client.HTTPException) as error:
            attacker.count(type(error).__name__)
            time.sleep(0.05)


def main() -> None:
    """Attack until standard input ends."""
    name, port, key = sys.argv[1:]
    os.nice(19)
    attacker = Attacker(int(port), key)
    make, number = attacks()[name]
    act = make()
    for _ in range(number):
        threading.Thread(target=partial(go_on, attacker, act), daemon=True).start()
    sys.stdin.read()
    sys.stdout.write(json.dumps(attacker.counts))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
