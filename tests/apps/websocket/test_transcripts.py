"""The committed conversations agree with the server, read by two clients that share no code."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.websocket.transcript import Mismatch, Player, fits, repeated
from tests.apps.websocket.web_serving import Hosted, engine_elsewhere, paced_model
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
TRANSCRIPTS = sorted((HERE / "transcripts").glob("*.json"))
SECONDS = 120


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert set(found) == {"about", "server", "steps"}
    return found


@pytest.fixture(scope="module", params=[paced_model, engine_elsewhere], ids=["here", "elsewhere"])
def model(request: pytest.FixtureRequest) -> Iterator[Hosted]:
    """The bundled model in this process, and in one of its own."""
    with request.param() as found:
        yield found


@pytest.fixture(scope="module")
def url(model: Hosted) -> Iterator[Callable[[dict[str, Any]], str]]:
    """Gives the address of a server with these settings; equal settings share one."""
    with ExitStack() as stack:
        ports: dict[str, int] = {}

        def find(settings: dict[str, Any]) -> str:
            key = json.dumps(settings, sort_keys=True)
            if key not in ports:
                ports[key] = stack.enter_context(model.serving(**settings))
            return f"ws://127.0.0.1:{ports[key]}/v1/stream"

        yield find


@for_each("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_python_and_server_agree(
    path: Path, model: Hosted, url: Callable[[dict[str, Any]], str]
) -> None:
    script = _read(path)
    Player(url(script["server"])).play(script["steps"])
    model.wait_idle()


def play_in_node(jobs: list[tuple[Path, str]]) -> list[str | None]:
    """Let Node's own client play transcripts.

    Args:
        jobs: Files, and where their servers are.

    Returns:
        For each nothing, or what went otherwise.
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node is installed")
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(told.removeprefix("v").split(".")[0])
    if major < 20:
        pytest.skip(f"Node {told.strip()} has no WebSocket client of its own")
    options = ["--experimental-websocket", "--no-warnings"] if major < 22 else []
    arguments = [part for path, url in jobs for part in (str(path), url)]
    command = [node, *options, str(HERE / "transcript.mjs"), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture(scope="module")
def node_says(url: Callable[[dict[str, Any]], str]) -> dict[str, str | None]:
    """Return Node's findings by transcript; one process plays them all."""
    found = play_in_node([(path, url(_read(path)["server"])) for path in TRANSCRIPTS])
    return {path.stem: line for path, line in zip(TRANSCRIPTS, found, strict=True)}


@for_each("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_node_and_server_agree(path: Path, node_says: dict[str, str | None]) -> None:
    assert node_says[path.stem] is None


WRONG: list[dict[str, Any]] = [
    {"expect": {"type": "pong", "nonce": "another"}},
    {"expect": {"type": "pong"}},
    {"expect": {"type": "pong", "nonce": "x", "more": 1}},
    {"expect": {"type": "pong", "nonce": "$integer"}},
    {"expect": [{"type": "hello"}]},
    {"expect_close": 1000},
    {"deltas": 1, "of": "x"},
    {"same": ["a", "b"]},
    {"dance": 1},
]
"""Steps after a ping that no honest player gets through."""


def _wrong(step: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"connect": True}, {"expect": "$any"}, {"send": {"type": "ping", "nonce": "x"}}, step]


@for_each("step", WRONG, ids=json.dumps)
def test_the_python_player_notices(
    step: dict[str, Any], url: Callable[[dict[str, Any]], str]
) -> None:
    with pytest.raises(Mismatch, match="step 3"):
        Player(url({})).play(_wrong(step))


def test_the_node_player_notices(url: Callable[[dict[str, Any]], str], tmp_path: Path) -> None:
    jobs = []
    for number, step in enumerate(WRONG):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({"about": "", "server": {}, "steps": _wrong(step)}))
        jobs.append((path, url({})))
    for step, found in zip(WRONG, play_in_node(jobs), strict=True):
        assert found is not None and found.startswith("step 3"), step


def test_placeholders_and_repeated_texts() -> None:
    assert fits("$integer", 3) and fits("$number", 3) and fits("$number?", None)
    assert not fits("$integer", True) and not fits("$number", None) and not fits("$string", 1)
    assert fits("$boolean", True) and fits("$any", {})
    assert repeated(["a", [["b", "c"], 2], "d"]) == "abcbcd"
