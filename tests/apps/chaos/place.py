"""A server as a process of its own, and questions whose answers are known."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.apps.cli.serving import served

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

PATIENCE = 60.0
"""Seconds after which a wait for something that must come is a failure."""
GREEDY: dict[str, Any] = {"do_sample": False}
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Ask:
    """A question whose answer is known.

    Attributes:
        prompt: A text; or, in a chat, what is said in turn, by the user first.
        params: Of the library, which every door takes, as JSON.
    """

    prompt: str | tuple[str, ...]
    params: str

    @property
    def source(self) -> Any:
        """The prompt, as the library takes it."""
        if isinstance(self.prompt, str):
            return self.prompt
        roles = ("user", "assistant") * len(self.prompt)
        pairs = zip(roles, self.prompt, strict=False)
        return [{"role": role, "content": content} for role, content in pairs]

    @property
    def is_chat(self) -> bool:
        """Tell whether it is a chat request."""
        return not isinstance(self.prompt, str)

    @property
    def path(self) -> str:
        """Path over HTTP."""
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, **extra: Any) -> dict[str, Any]:
        """The body of its request over HTTP."""
        key = "messages" if self.is_chat else "prompt"
        return {"model": "demo", key: self.source, **json.loads(self.params), **extra}


def ask(*prompt: str, chat: bool = False, **params: Any) -> Ask:
    """Make a question."""
    return Ask(prompt if chat else prompt[0], json.dumps(params))


SHORT: dict[str, Any] = {"max_new_tokens": 24}
LONG: dict[str, Any] = {"max_new_tokens": 160, "min_new_tokens": 160}
TALE = ask("Tell me a story about a fox.", chat=True, **LONG, seed=11)
ASKS = (
    ask("Once upon a time", **SHORT, **GREEDY),
    ask("Once upon a time there was a hen", **LONG, **GREEDY),
    ask("The wind", **SHORT, seed=5, temperature=1.2),
    ask("Long ago, by the sea,", **LONG, seed=7, temperature=0.9, top_p=0.8),
    ask("There was", **SHORT, **GREEDY, num_beams=3),
    ask("a fox and a hen and " * 60, **SHORT, **GREEDY),
    ask("Who are you?", chat=True, **SHORT, **GREEDY),
    ask("What is 2 + 3?", chat=True, **SHORT, seed=3, repetition_penalty=1.1),
    TALE,
)
ENDLESS = ask("Once", max_new_tokens=900, min_new_tokens=900, seed=1)
"""What a client asks that does not mean to hear the end."""


def said(content: str) -> list[dict[str, str]]:
    """A chat of one message."""
    return [{"role": "user", "content": content}]


@dataclass
class Place:
    """A server, seen from outside.

    Attributes:
        pid: Its process.
        port: Of HTTP.
        ws_port: Of the streams alone.
        answers: What it says when it is asked one thing at a time.
        held: Connections of clients that went silent; they stay open until :meth:`let_go`.
        frozen: Clients that were stopped in the middle.
        has_chat: Whether it has the chat page.
    """

    pid: int
    port: int
    ws_port: int
    answers: dict[Ask, str] = field(default_factory=dict)
    held: list[socket.socket] = field(default_factory=list)
    frozen: list[subprocess.Popen[bytes]] = field(default_factory=list)
    has_chat: bool = False

    def post(self, path: str, body: object) -> tuple[int, Any]:
        """Send a body; return the status and what came, which is JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, content = self.ask("POST", path, raw)
        return status, json.loads(content)

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send one request on a connection of its own."""
        wire = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            wire.request(method, path, body, JSON if body is not None else {})
            got = wire.getresponse()
            return got.status, got.read()
        finally:
            wire.close()

    def begin(self, one: Ask, **extra: Any) -> socket.socket:
        """Send a question, and leave the answer on the wire."""
        body = json.dumps(one.body(**{"stream": True, **extra})).encode()
        wire = self.dial()
        wire.sendall(head(one.path, len(body)) + body)
        return wire

    def dial(self) -> socket.socket:
        """Connect."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def figures(self) -> dict[str, float]:
        """The gauges of the engine."""
        lines = self.ask("GET", "/metrics")[1].decode().splitlines()
        found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {
            name.partition("{")[0].removeprefix("vllm:"): float(value) for name, _, value in found
        }

    @property
    def num_threads(self) -> int:
        """Threads of the process."""
        return len(os.listdir(f"/proc/{self.pid}/task"))

    @property
    def num_files(self) -> int:
        """Open files of the process."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def memory(self) -> int:
        """Bytes of the process that are in memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def let_go(self) -> None:
        """End the clients that are silent or stand still."""
        for wire in self.held:
            wire.close()
        for client in self.frozen:
            client.kill()
            client.wait(PATIENCE)
        self.held.clear()
        self.frozen.clear()

    def wait_idle(self) -> None:
        """Wait until nobody is served, and see that everything is back."""
        wait_for(lambda: self.unfinished == 0)
        assert self.figures()["kv_cache_usage_perc"] == 0.0

    @property
    def unfinished(self) -> int:
        """Requests that run or wait."""
        found = self.figures()
        return int(found["num_requests_running"] + found["num_requests_waiting"])


def head(path: str, length: int, *more: str) -> bytes:
    """The head of a request with a body."""
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        *more,
    )
    return "\r\n".join([*lines, "", ""]).encode()


def text_of(choice: dict[str, Any]) -> str:
    """The text of a choice, or of a piece of one."""
    if "text" in choice:
        return str(choice["text"])
    return str((choice.get("message") or choice["delta"]).get("content") or "")


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so that no event tells of."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def free_ports() -> tuple[int, int]:
    """Two ports that nobody has at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


@contextmanager
def started(
    *options: str, ports: tuple[int, int] = (0, 0), program: str = "asyncgen_apps.cli"
) -> Iterator[Place]:
    """Run ``asyncgen serve`` with a second port for the streams; nothing of it survives.

    Args:
        *options: Of ``asyncgen serve``.
        ports: Of HTTP, and of the streams alone; 0 chooses.
        program: What is run in place of the command.
    """
    chosen = ("--port", str(ports[0]), "--ws-port", str(ports[1]), "--name", "demo")
    with served("--no-chat", *chosen, *options, program=program) as (process, url, log):
        second = int(urlsplit(log[-1].rpartition(" at ")[2].strip()).port or 0)
        place = Place(
            process.pid, int(url.rpartition(":")[2]), second, has_chat="--chat" in options
        )
        assert process.stderr is not None
        # Nobody must wait because nobody reads what the server says.
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        try:
            yield place
        finally:
            place.let_go()
            process.kill()
            reader.join(PATIENCE)
