"""Heavy requests that the limits allow, on every door: a program that sends them one by one.

``python -m tests.apps.chaos.heavy PORT WS_PORT`` reads lines from standard input: seconds, and a
name of `REQUESTS`. It sends that request at the lowest priority that there is, and writes a line
when it was answered, refused or, after so many seconds, left: the beginning of what came, as JSON.
"""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import struct
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass
class Client:
    """The client that sends.

    Attributes:
        patience: Seconds after which it leaves.
    """

    patience: float = 8.0


CLIENT = Client()
SHOWN = 600
"""Bytes of a reply that are shown."""
_NESTED = "(a?){4000}a{4000}"


def over_http(path: str, content: Callable[[], bytes], port: int, *more: str) -> bytes:
    """Send a body, and read until the server ends the connection."""
    whole = content()
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", *more)
    told = () if any("hunked" in line for line in more) else (f"Content-Length: {len(whole)}",)
    kind = (
        () if any("ontent-Type" in line for line in more) else ("Content-Type: application/json",)
    )
    return send("\r\n".join([*lines, *told, *kind, "", ""]).encode() + whole, port)


def send(content: bytes, port: int, *, leaves: bool = False, after: bytes = b"") -> bytes:
    """Send bytes as fast as the server takes them, and read, until it ends or the client leaves.

    Args:
        content: The bytes.
        port: Of the server.
        leaves: Whether the client leaves after a moment.
        after: A handshake, whose answer is waited for.

    Returns:
        The beginning of what came.
    """
    came = b""
    end = time.monotonic() + (0.3 if leaves else CLIENT.patience)
    with socket.create_connection(("127.0.0.1", port), CLIENT.patience) as wire, suppress(OSError):
        if after:
            wire.sendall(after)
            came = wire.recv(SHOWN)
        wire.setblocking(False)
        rest = memoryview(content)
        while time.monotonic() < end:
            with suppress(BlockingIOError):
                rest = rest[wire.send(rest[: 1 << 18]) :] if rest else rest
            with suppress(BlockingIOError):
                part = wire.recv(1 << 18)
                if len(came) < SHOWN:
                    came += part[:SHOWN]
                if not part:
                    break
            time.sleep(0.001)
    return came


def body(**fields: Any) -> bytes:
    """A body, of a prompt unless there are messages or input."""
    prompt = {} if {"messages", "input"} & fields.keys() else {"prompt": "Once upon a time"}
    return json.dumps({"model": "demo", **prompt, **fields}).encode()


def said(content: str) -> list[dict[str, str]]:
    """A chat of one message."""
    return [{"role": "user", "content": content}]


def in_chunks(content: bytes, size: int) -> bytes:
    """A body in chunks."""
    parts = (content[start : start + size] for start in range(0, len(content), size))
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def schema(**fields: Any) -> dict[str, Any]:
    """A format of answers that a JSON schema describes."""
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": fields}}


def nested(depth: int) -> dict[str, Any]:
    """A schema whose alternatives double with each level."""
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        inner = {"anyOf": [{"type": "object", "properties": {key: inner}} for key in "ab"]}
    return inner


def piped(number: int, last: bytes = b"") -> bytes:
    """Many requests in one go."""
    return b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * number + last


def slow_reader(content: bytes, port: int) -> bytes:
    """Ask for a large reply, and read it by a few bytes."""
    with socket.create_connection(("127.0.0.1", port), CLIENT.patience) as wire, suppress(OSError):
        head = f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
        wire.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + content)
        end = time.monotonic() + CLIENT.patience
        while time.monotonic() < end and wire.recv(100):
            time.sleep(0.01)
    return b""


def many_connections(port: int, number: int = 800) -> bytes:
    """Open connections at once, with half a request on each."""
    held = []
    with suppress(OSError):
        for _ in range(number):
            held.append(socket.create_connection(("127.0.0.1", port), CLIENT.patience))
            held[-1].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX: ")
    time.sleep(1.0)
    for wire in held:
        wire.close()
    return b""


def pages_at_once(port: int, number: int = 300) -> bytes:
    """Ask for a page on each of many connections, then read."""
    content = b""
    with ExitStack() as stack:
        wires = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            for _ in range(number)
        ]
        for wire in wires:
            wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for wire in wires:
            content = wire.recv(1 << 16)
    return content


def handshake(path: str) -> bytes:
    """The head that opens a WebSocket."""
    key = base64.b64encode(random.randbytes(16)).decode()
    lines = (
        f"GET {path} HTTP/1.1",
        "Host: localhost",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
    )
    return "\r\n".join([*lines, "", ""]).encode()


def frame(content: bytes, opcode: int = 1, *, ends: bool = True) -> bytes:
    """A frame of a client; masked with zeros."""
    size = len(content)
    head = bytes([(0x80 if ends else 0) | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += bytes([0xFE]) + struct.pack(">H", size)
    else:
        head += bytes([0xFF]) + struct.pack(">Q", size)
    return head + bytes(4) + content


def generate(number: int = 0, **fields: Any) -> bytes:
    """A message that starts a stream."""
    params = {key: fields.pop(key) for key in [*fields] if key not in ("prompt", "messages")}
    asked = {"type": "generate", "id": f"g{number}", "prompt": "Once", **fields, "params": params}
    return frame(json.dumps(asked).encode())


def on_sockets(make: Callable[[], bytes], *, second: bool) -> Callable[[int, int], bytes]:
    """Send frames behind a handshake, on one of the two ports."""

    def act(port: int, ws_port: int) -> bytes:
        path, at = ("/", ws_port) if second else ("/v1/stream", port)
        return send(make(), at, after=handshake(path))

    return act


def _http(path: str, make: Callable[[], bytes], *more: str) -> Callable[[int, int], bytes]:
    return lambda port, ws_port: over_http(path, make, port, *more)


def _sent(make: Callable[[], bytes], *, leaves: bool = False) -> Callable[[int, int], bytes]:
    return lambda port, ws_port: send(make(), port, leaves=leaves)


_ECHO = {"prompt": ["all work and no play " * 150] * 30, "echo": True, "logprobs": 20}
_WIDE = {"n": 128, "logprobs": 20, "min_new_tokens": 60, "max_new_tokens": 60}
_FORCED = [[300 + number, 400 + number] for number in range(40)]
_BEAMS = {"num_beams": 128, "do_sample": False, "max_new_tokens": 100}

HTTP: dict[str, Callable[[int, int], bytes]] = {
    "n=128 with log-probabilities": _http(TEXT, lambda: body(**_WIDE)),
    "the same as a stream": _http(TEXT, lambda: body(**_WIDE, stream=True)),
    "chat of n=128 with log-probabilities": _http(
        CHAT,
        lambda: body(messages=said("x"), n=128, logprobs=True, top_logprobs=20, max_new_tokens=60),
    ),
    "echo of 30 prompts": _http(TEXT, lambda: body(**_ECHO, max_tokens=0)),
    "echo of 30 prompts as a stream": _http(TEXT, lambda: body(**_ECHO, stream=True)),
    "a slow reader of a large reply": lambda port, _: slow_reader(body(**_WIDE), port),
    "1,024 prompts": _http(TEXT, lambda: body(prompt=["x " * 400] * 1024, max_tokens=1)),
    "a prompt of a million ids": _http(TEXT, lambda: body(prompt=[5] * 1_000_000)),
    "a prompt of 7 MB": _http(TEXT, lambda: body(prompt="all work and no play " * 350_000)),
    "tokenize": _http("/tokenize", lambda: body(prompt="all work and no play " * 60_000)),
    "detokenize": _http("/detokenize", lambda: body(tokens=[*range(300, 2000)] * 120)),
    "large tools": _http(
        CHAT,
        lambda: body(
            messages=said("x"),
            tools=[
                {"type": "function", "function": {"name": f"f{n}", "parameters": nested(6)}}
                for n in range(128)
            ],
        ),
    ),
    "embeddings": _http("/v1/embeddings", lambda: body(input=["a few words"] * 2048)),
    "embeddings of ids": _http("/v1/embeddings", lambda: body(input=[[5] * 500] * 500)),
    "60,000 messages": _http(CHAT, lambda: body(messages=said("x") * 30_000)),
    "long chat": _http(CHAT, lambda: body(messages=said("all work and no play " * 60_000))),
    "logit_bias": _http(TEXT, lambda: body(logit_bias={str(n): 1 for n in range(300_000)})),
    "bad words": _http(TEXT, lambda: body(bad_words_ids=[[n, n] for n in range(1, 2000)] * 20)),
    "stop strings": _http(TEXT, lambda: body(stop=["ab" * 2000] * 400)),
    "wrong in 100,000 places": _http(TEXT, lambda: body(prompt=[{"a": 1}] * 100_000)),
    "chunks of a byte": _http(
        TEXT, lambda: in_chunks(body(prompt="x" * 500_000), 1), "Transfer-Encoding: chunked"
    ),
    "a list 100,000 deep": _http(TEXT, lambda: b"[" * 1_000_000),
    "keys twice": _http(TEXT, lambda: b'{"a": 1, %s "b": 2}' % (b'"a": 2, ' * 700_000)),
    "pipelined": _sent(lambda: piped(30_000)),
    "left behind a pipelined request": _sent(
        lambda: (
            (
                f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body(**_WIDE))}\r\n\r\n"
            ).encode()
            + body(**_WIDE)
            + piped(5000)
        ),
        leaves=True,
    ),
    "heads without an end": _sent(lambda: b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1_000_000),
    "800 connections": lambda port, _: many_connections(port),
    "pages at once": lambda port, _: pages_at_once(port),
    "regex": _http(TEXT, lambda: body(regex=_NESTED)),
    "regex of words": _http(TEXT, lambda: body(regex="(x+x+){1000}y")),
    "pattern of a schema": _http(
        CHAT,
        lambda: body(messages=said("x"), response_format=schema(type="string", pattern=_NESTED)),
    ),
    "regex of a grammar": _http(TEXT, lambda: body(grammar=f"start: /{_NESTED}/")),
    "alternatives of a schema": _http(
        CHAT, lambda: body(messages=said("x"), response_format=schema(**nested(14)))
    ),
    "3,000 properties": _http(
        CHAT,
        lambda: body(
            messages=said("x"),
            response_format=schema(
                type="object",
                properties={f"p{n}": {"type": "string"} for n in range(3000)},
                additionalProperties=False,
            ),
        ),
    ),
    "constrained beams": _http(TEXT, lambda: body(**_BEAMS, force_words_ids=_FORCED)),
    "128 beams": _http(TEXT, lambda: body(**_BEAMS, n=128)),
    "groups of beams": _http(
        TEXT, lambda: body(**_BEAMS, num_beam_groups=64, diversity_penalty=0.5)
    ),
    "contrastive search": _http(
        TEXT, lambda: body(do_sample=False, penalty_alpha=0.6, top_k=100, max_new_tokens=200)
    ),
    "lookup in the prompt": _http(
        TEXT,
        lambda: body(prompt="a b c " * 300, prompt_lookup_num_tokens=50, max_new_tokens=100),
    ),
}
"""Requests over HTTP, by name."""

SOCKETS: dict[str, Callable[[], bytes]] = {
    "a message of 7 MB": lambda: generate(prompt="all work and no play " * 350_000),
    "a thousand messages": lambda: b"".join(
        generate(number, max_new_tokens=1) for number in range(2000)
    ),
    "small messages that are refused": lambda: frame(b"{}") * 200_000,
    "pings": lambda: frame(b"", 9) * 500_000,
    "empty fragments": lambda: frame(b"a", ends=False) + frame(b"", 0, ends=False) * 500_000,
    "log-probabilities of 128": lambda: generate(
        num_return_sequences=128, top_logprobs=20, max_new_tokens=60
    ),
    "regex on a socket": lambda: generate(regex=_NESTED),
    "ids": lambda: generate(prompt=[5] * 1_000_000),
}
"""Messages over WebSocket, by name; each for both ports."""

PAGE: dict[str, Callable[[int, int], bytes]] = {
    "an event of the page": _http(
        "/gradio_api/queue/join",
        lambda: json.dumps(
            {"data": [[1] * 3] * 1_500_000, "fn_index": 0, "session_hash": "a"}
        ).encode(),
    ),
    "a call of the page": _http(
        "/gradio_api/call/chat",
        lambda: json.dumps({"data": ["x" * 4_000_000, [], {}]}).encode(),
    ),
    "a history of the page": _http(
        "/gradio_api/call/chat",
        lambda: json.dumps({"data": ["x", said("y") * 200_000, {}]}).encode(),
    ),
    "a run of the page": _http(
        "/gradio_api/run/predict",
        lambda: json.dumps({"data": [{"a": [{}] * 2_000_000}], "fn_index": 1}).encode(),
    ),
}
"""Requests to the chat page, by name."""

REQUESTS: dict[str, Callable[[int, int], bytes]] = {
    **HTTP,
    **{f"{name}, /v1/stream": on_sockets(make, second=False) for name, make in SOCKETS.items()},
    **{f"{name}, --ws-port": on_sockets(make, second=True) for name, make in SOCKETS.items()},
    **PAGE,
}
"""All of them, by name."""


def main() -> None:
    """Send what standard input names."""
    os.nice(19)
    port, ws_port = int(sys.argv[1]), int(sys.argv[2])
    for line in sys.stdin:
        came = b""
        with suppress(OSError):
            seconds, _, name = line.strip().partition(" ")
            CLIENT.patience = float(seconds)
            came = REQUESTS[name](port, ws_port)
        sys.stdout.write(json.dumps(came.decode("latin-1")) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
