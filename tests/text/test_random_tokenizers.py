"""Random ``tokenizer.json`` files: none ends a process or takes long."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("resource")


def tried(seed: int, count: int) -> dict[str, Any]:
    """Try files in processes of their own; see `strange_tokenizers`."""
    command = [sys.executable, "-m", "tests.text.strange_tokenizers", str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_random_tokenizers_are_used_or_refused_by_name() -> None:
    found = tried(0, 25)
    assert found["broken"] == []
    assert {"used", "refused at load"} <= found["ends"].keys() and sum(found["ends"].values()) == 25


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 6))
def test_many_random_tokenizers_are_used_or_refused_by_name(seed: int) -> None:
    assert tried(seed, 1000)["broken"] == []
