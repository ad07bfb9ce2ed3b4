"""The flag that ends a request from outside."""

from __future__ import annotations

import subprocess
import sys

import torch

from asyncgen.generation.stopping.cancel import CancelCriteria


def test_answers_for_every_row() -> None:
    cancel = CancelCriteria()
    ids = torch.zeros(3, 5, dtype=torch.int64)
    assert cancel(ids).tolist() == [False] * 3
    cancel.set()
    cancel.set()
    assert cancel.is_set()
    assert cancel(ids, None, anything=1).tolist() == [True] * 3


def test_importing_it_brings_no_torch() -> None:
    code = "import sys, asyncgen.generation.stopping.cancel; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
