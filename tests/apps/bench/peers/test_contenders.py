from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from asyncgen_apps.bench.peers.contenders import (
    CONTENDERS,
    DEFAULT,
    OURS,
    environments_folder,
    installed,
)
from asyncgen_apps.bench.peers.processes import PROGRAMS
from tests.cases import for_each

if TYPE_CHECKING:
    import pytest

    from asyncgen_apps.bench.peers.programs.protocol import Request

SCRIPT = Path(__file__).parents[4] / ".ci" / "peers"


def test_every_contender_has_its_program() -> None:
    for one in CONTENDERS.values():
        file, _, name = one.program.partition(":")
        assert f"\nclass {name}" in (PROGRAMS / f"{file}.py").read_text(encoding="utf-8")


def test_the_fast_ones_take_part_by_themselves() -> None:
    assert DEFAULT[0] == OURS
    plain = {name for name, one in CONTENDERS.items() if one.bits is None}
    assert plain - set(DEFAULT) == {"asyncgen-torch", "ctranslate2"}


def test_installed_contenders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("vllm", "llamacpp"):
        (tmp_path / name).mkdir()
    (tmp_path / "vllm" / "installed").touch()  # the other one was never finished
    there, missing = installed([OURS, "transformers", "llamacpp", "vllm"], tmp_path)
    assert there == {OURS: sys.executable, "vllm": str(tmp_path / "vllm/bin/python")}
    assert missing == ["transformers", "llamacpp"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    there, missing = installed(["transformers", "llamacpp"], tmp_path)
    assert (there, missing) == ({"transformers": sys.executable}, ["llamacpp"])


def test_paths_of_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCGEN_PEERS", "/somewhere")
    assert environments_folder() == Path("/somewhere")
    monkeypatch.delenv("ASYNCGEN_PEERS")
    assert environments_folder() == Path.home() / ".cache" / "asyncgen-peers"
    assert "$HOME/.cache/asyncgen-peers" in SCRIPT.read_text(encoding="utf-8")


def test_the_script_makes_the_environments_of_all_peers(tmp_path: Path) -> None:
    homes = {one.home for one in CONTENDERS.values() if one.home is not None}
    assert set(re.findall(r"^    (\w+)\)", SCRIPT.read_text(encoding="utf-8"), re.M)) == homes
    for home in homes:
        (tmp_path / home).mkdir()
        (tmp_path / home / "installed").touch()
    environment = {"PATH": "/usr/bin:/bin", "ASYNCGEN_PEERS": str(tmp_path)}

    def make(*names: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *names], env=environment, capture_output=True, text=True, check=False
        )

    done = make()
    assert done.returncode == 0
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == homes
    done = make("vllm", "nobody")
    assert done.returncode == 1
    assert done.stdout == "vllm: is there\n" and "nobody: must be one of" in done.stderr


def request(new_tokens: int = 4, arrival: float = 0.0) -> Request:
    return {"prompt": [1], "new_tokens": new_tokens, "arrival": arrival}


@for_each(
    ("name", "lone", "many", "uneven", "arriving"),
    [
        (OURS, True, True, True, True),
        ("vllm", True, True, True, True),
        ("transformers", True, True, False, False),
        ("transformers-thread", True, False, False, False),
        ("transformers-continuous", True, True, True, True),
        ("ctranslate2", True, True, False, False),
    ],
)
def test_options_of_each_contender(
    name: str, lone: bool, many: bool, uneven: bool, arriving: bool
) -> None:
    one = CONTENDERS[name]
    assert one.takes([request()]) is lone
    assert one.takes([request(), request()]) is many
    assert one.takes([request(4), request(5)]) is uneven
    assert one.takes([request(), request(arrival=1.0)]) is arriving
