"""Torch takes seconds to import: nothing of ours does it on the thread of an event loop.

Torch is never there in these processes: whoever asks for it is written down with its thread, and
gets an error as if it were not installed. So each door is tried anew, in a moment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WATCH = """
    import asyncio, importlib.abc, sys, threading

    class Watch(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name == "torch":
                name = threading.current_thread().name
                threads.append("loop" if asyncio._get_running_loop() else name)
                raise ModuleNotFoundError("no torch here", name="torch")

    threads = []
    sys.meta_path.insert(0, Watch())

    def report(door):
        print(door, *sorted(set(threads)), flush=True)
        threads.clear()
"""

DOORS = """
    import anyio, asyncgen

    async def start():
        async with asyncgen.AsyncLLM("demo"):
            raise AssertionError("loaded without torch")

    async def stream():
        async for _ in asyncgen.AsyncLLM("demo").stream("a"):
            pass

    async def generate():
        await asyncgen.AsyncLLM("demo").generate("a", temperature=0.5, stop=["b"], max_time=1.0)

    async def http():
        from asyncgen_apps.openai_http import ServerSettings, create_app

        llm = asyncgen.AsyncLLM("demo")
        app = create_app(llm, ServerSettings(model_names=("demo",)))
        body = {"model": "demo", "messages": [{"role": "user", "content": "a"}]}
        import httpx

        where = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=where, base_url="http://127.0.0.1") as client:
            answer = await client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 500, answer.text
            await client.get("/docs"), await client.get("/metrics"), await client.get("/health")
        await llm.start()

    async def websocket():
        if sys.argv[1] == "trio":  # the server runs on asyncio
            from asyncgen_apps.websocket import connect

            async with connect("ws://127.0.0.1:1"):
                raise AssertionError("nobody is there")

        from asyncgen_apps.websocket import StreamSettings, connect, serve_websocket

        llm = asyncgen.AsyncLLM("demo")
        async with serve_websocket(llm, "127.0.0.1", 0) as server:
            async with connect(f"ws://127.0.0.1:{server.port}") as client:
                report("client")
                await client.generate("a")

    async def main():
        for door in (start, stream, generate, http, websocket):
            try:
                await door()
            except Exception as error:
                print(door.__name__, repr(error), file=sys.stderr)
            report(door.__name__)

    anyio.run(main, backend=sys.argv[1])
    for door in (lambda: asyncgen.LLM("demo").start(), lambda: asyncgen.LLM("demo").generate("a")):
        try:
            door()
        except ModuleNotFoundError:
            report("LLM")
"""

COMMANDS = """
    from asyncgen_apps.cli.app import app

    try:
        app(sys.argv[1:])
    except BaseException as error:
        print(repr(error), file=sys.stderr)
    report("command")
"""


def run_without_torch(code: str, *arguments: str) -> tuple[list[str], str]:
    """Lines that a script writes to standard output, and all that it writes to the other."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WATCH) + textwrap.dedent(code), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "apps")])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout.splitlines(), done.stderr


@pytest.mark.gate
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_torch_is_asked_for_on_threads_of_ours(backend: str) -> None:
    lines, told = run_without_torch(DOORS, backend)
    doors = ["start", "stream", "generate", "http"]
    expected = [f"{door} asyncgen-decode" for door in doors]
    # The client asks for none, nor does the server by itself.
    expected += ["websocket"] if backend == "trio" else ["client", "websocket asyncgen-decode"]
    assert lines == [*expected, "LLM asyncgen-decode", "LLM asyncgen-decode"], told


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--port", "0"),
        pytest.param(("serve-ws", "--port", "0"), marks=pytest.mark.gate),
        pytest.param(("gradio",), marks=pytest.mark.gate),
    ],
)
def test_commands_ask_for_torch_before_there_is_a_loop(command: tuple[str, ...]) -> None:
    lines, told = run_without_torch(COMMANDS, *command)
    assert lines[-1:] in (["command MainThread"], ["command asyncgen-decode"]), told
