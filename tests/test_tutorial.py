"""Follow the tutorial: its commands, its servers, its page in a browser, each program alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.apps.gradio_chat.browsing import chromium
from tests.pages import ROOT, examples, fences, prints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

    from tests.pages import Block, Example

TUTORIAL = ROOT / "asyncgen" / "docs" / "tutorial.md"
BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'apps'}",
    "OMP_NUM_THREADS": "1",
}
PATIENCE = 60.0
WITHOUT_NUMPY = "import sys; sys.modules['numpy'] = None; exec(open('story.py').read())"
ALONE = [each for page in (ROOT / "README.md", TUTORIAL) for each in examples(page)]

pytestmark = pytest.mark.gate


@pytest.mark.parametrize("example", ALONE, ids=str)
def test_a_program_runs_alone_and_says_nothing_else(example: Example, tmp_path: Path) -> None:
    (tmp_path / "story.py").write_text(example.code, encoding="utf-8")
    done = _run([sys.executable, "-c", WITHOUT_NUMPY], tmp_path)
    assert done.stderr == "" and done.returncode == 0
    assert example.output is not None and prints(example.output, done.stdout), done.stdout


def test_the_commands_the_servers_and_the_page(tmp_path: Path) -> None:
    """Ports are others than those that the page names, which may be taken."""
    named = [port for each in fences(TUTORIAL) if (port := each.note("server"))]
    ports = {port: str(_free_port()) for port in named}
    with ExitStack() as servers:
        waiting: Block | None = None
        said: Path | None = None
        for block in fences(TUTORIAL):
            code = block.code
            for port, other in ports.items():
                code = code.replace(port, other)
            if name := block.note("file"):
                (tmp_path / name).write_text(code, encoding="utf-8")
            elif port := block.note("server"):
                said = servers.enter_context(_server(code, int(ports[port]), tmp_path))
            elif "<!-- output -->" in block.notes and said is not None and waiting is None:
                _wait(partial(_says, said, code))
                said = None
            elif "<!-- run -->" in block.notes:
                done = _run(["bash", "-c", code], tmp_path)
                assert done.returncode == 0, done.stderr
                waiting, printed = block, done.stdout + done.stderr
            elif waiting is not None:
                assert "<!-- output -->" in block.notes and prints(block.code, printed), printed
                waiting = None
        page = servers.enter_context(_open(f"http://127.0.0.1:{ports['8080']}/page.html"))
        _use(page)


def _use(page: Page) -> None:
    """Do what the last step says: stop, reload, ask for a schema."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = axe.run(page).response["violations"]
    assert not [each for each in found if each["impact"] in ("serious", "critical")], found
    state, answer = page.locator("#state"), page.locator("#answer")
    page.get_by_text("Send").click()
    _wait(lambda: len(answer.inner_text()) > 40)
    page.get_by_text("Stop").click()
    _wait(lambda: state.inner_text() == "cancelled")
    stopped = answer.inner_text()
    assert stopped and not stopped.startswith("{")

    page.get_by_text("Send").click()
    _wait(lambda: state.inner_text() == "answering" and len(answer.inner_text()) > 40)
    page.reload()
    _wait(lambda: state.inner_text() == "stop")
    # As many characters as asked for, and none twice: the server has numbered each delta.
    now = page.evaluate("JSON.parse(sessionStorage.now)")
    assert now["token"] is None and len(now["text"]) == 2000
    assert now["text"].split() == answer.inner_text().split()

    page.locator("[name=question]").fill("What colour is grass?")
    page.locator("[name=shape]").check()
    page.get_by_text("Send").click()
    colours = [f'{{"colour": "{one}"}}' for one in ("red", "green", "blue")]
    _wait(lambda: answer.inner_text() in colours and state.inner_text() == "stop")


@contextmanager
def _open(url: str) -> Iterator[Page]:
    with chromium() as browser:
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(url)
        yield page
        assert errors == []


@contextmanager
def _server(command: str, port: int, folder: Path) -> Iterator[Path]:
    """Run a server until the end, from when its port answers; what it prints is in a file."""
    printed = folder / f"{port}.log"
    with (
        printed.open("wb") as out,
        subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=ENVIRONMENT,
            stdout=out,
            stderr=out,
        ) as process,
    ):
        try:
            _wait(lambda: _answers(port))
            yield printed
        finally:
            process.terminate()


def _says(printed: Path, expected: str) -> bool:
    return prints(expected, printed.read_text("utf-8"))


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def _answers(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
    return port


def _wait(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)
