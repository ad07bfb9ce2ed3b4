"""Folders that a stranger has made do no harm: to files elsewhere, to memory, to time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.strange_folders import SECRET, strayed
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.tokenizers import save_tokenizer

ROOT = Path(__file__).parents[2]
MOST_MEGABYTES = 500

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has inotify, FIFOs, devices")


def check(tmp_path: Path, seeds: range, *watched: str) -> None:
    """Open folders of these seeds, and save over them; a program may watch."""
    whole, place = tmp_path / "whole", tmp_path / "place"
    save_checkpoint(whole)
    save_tokenizer(whole, "byte_level")
    (whole / "chat_template.jinja").write_text("{{ messages[0].content }}")
    (place / "outside/more").mkdir(parents=True)
    for name in ("secret", "more/secret.jinja"):
        (place / "outside" / name).write_text(SECRET)
    command = [
        *watched,
        sys.executable,
        "-m",
        "tests.checkpoints.strange_folders",
        f"{whole}",
        f"{place}",
    ]
    wrong: dict[int, str] = {}
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for seed in seeds:
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
            said, megabytes = json.loads(process.stdout.readline() or '["it ended", 0]')
            if megabytes > MOST_MEGABYTES:
                said += f"; {megabytes} MB"
            if said:
                wrong[seed] = said
        process.stdin.close()
    assert not wrong


def test_some_strange_folders(tmp_path: Path) -> None:
    check(tmp_path, range(25))


@pytest.mark.gate
def test_more_strange_folders(tmp_path: Path) -> None:
    check(tmp_path, range(1000, 1150))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_strange_folders_under_strace(tmp_path: Path) -> None:
    """No file elsewhere is opened, made, renamed or removed by whatever code, nor its folder."""
    log = tmp_path / "log"
    options = ("-f", "-y", "-qq", "-s", "4096", "-e", "trace=%file", "-o", f"{log}")
    check(tmp_path, range(20_000, 20_300), "strace", *options)
    found = strayed(log, tmp_path / "place", tmp_path / "whole")
    assert not found, sorted(found)[:20]
    assert log.stat().st_size > 1_000_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_thousand_strange_folders(tmp_path: Path) -> None:
    check(tmp_path, range(10_000, 12_000))
