"""Test the number of connections under every limit of open files."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import pytest

from asyncgen_apps.serving import sockets
from asyncgen_apps.websocket.settings import StreamSettings

PATIENCE = 60.0
CASES = [
    (None, 1, 4096),
    (1_000_000, 1, 4096),
    (1024, 1, 896),
    (1024, 2, 432),
    (400, 1, 272),
    (160, 1, 48),
    (40, 1, 1),
    (4, 2, 1),
]


@pytest.mark.parametrize(("files", "listeners", "most"), CASES)
def test_room(
    monkeypatch: pytest.MonkeyPatch, files: int | None, listeners: int, most: int
) -> None:
    monkeypatch.setattr(sockets, "open_files", lambda: files)
    assert sockets.room(listeners) == most
    assert sockets.too_many(most, listeners) is None
    reason = sockets.too_many(10**9, listeners)
    if files is None:
        assert reason is None
    else:
        assert reason is not None
        assert f"{files} files" in reason
        assert f"room for {most}" in reason or files == 1_000_000


def test_the_limit_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sockets.room() >= 1
    monkeypatch.setattr(sockets, "resource", None)
    assert sockets.open_files() is None


def test_streams_take_no_more_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert StreamSettings(max_connections=1024).max_connections == 1024
    monkeypatch.setattr(sockets, "open_files", lambda: 256)
    assert StreamSettings().max_connections == 128
    with pytest.raises(ValueError, match=r"max_connections is 129: .* leaves room for 128"):
        StreamSettings(max_connections=129)


OUT_OF_FILES = """
import asyncio, os, resource, sys
from asyncgen_apps.serving.sockets import listen

async def greet(reader, writer):
    if await reader.read(100):
        writer.write(b"hello")
    writer.close()

async def main():
    failures = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: failures.append(context))
    listener = listen("127.0.0.1", 0, 500)
    server = await asyncio.start_server(greet, sock=listener)
    files = max(map(int, os.listdir("/dev/fd"))) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    print(listener.getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    server.close()
    print(len(failures), flush=True)

asyncio.run(main())
"""
"""A server of asyncio that may open twenty files more, and says how often its loop complained."""


@pytest.mark.skipif(sys.platform == "win32", reason="sockets are no files there")
def test_a_process_without_files_refuses_in_order() -> None:
    """Others get in again as soon as there are files, and the loop has not gone mad meanwhile."""
    command = [sys.executable, "-c", OUT_OF_FILES]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process, ExitStack() as stack:
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        silent = [
            stack.enter_context(socket.create_connection(address, PATIENCE)) for _ in range(200)
        ]
        assert greeted(address) == b""  # at once, though nobody is served
        for one in silent:
            one.close()
        end = time.monotonic() + PATIENCE
        while greeted(address) != b"hello":
            assert time.monotonic() < end
            time.sleep(0.01)
        said, _ = process.communicate("\n", timeout=PATIENCE)
        assert said == "0\n"


def greeted(address: tuple[str, int]) -> bytes:
    """Return what a client receives."""
    with socket.create_connection(address, PATIENCE) as wire:
        try:
            wire.sendall(b"hi")
            return wire.recv(100)
        except ConnectionError:
            return b""


def test_a_listener_is_a_socket() -> None:
    with sockets.listen("127.0.0.1", 0, 1) as listener:
        with socket.create_connection(listener.getsockname(), PATIENCE) as client:
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(b"a")
                assert client.recv(1) == b"a"
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    listener.close()
