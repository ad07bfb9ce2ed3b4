"""``asyncgen serve`` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


@contextmanager
def served(
    *options: str, program: str = "asyncgen_apps.cli", files: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """Start a server; give the process, its address and what it said.

    Args:
        *options: Of ``asyncgen serve``.
        program: What is run in place of the command.
        files: How many it may open.
    """

    def limit() -> None:
        import resource

        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    command = [sys.executable, "-m", program, "serve", "--port", "0", *options]
    environ = {"OMP_NUM_THREADS": "1", "GRADIO_ANALYTICS_ENABLED": "False", **os.environ}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        preexec_fn=None if files is None else limit,
    ) as process:
        try:
            said: list[str] = []
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"^serving .* at (http://\S+)/v1", line):
                    yield process, found.group(1), said
                    break
            else:
                raise AssertionError("".join(said))
        finally:
            if process.poll() is None:
                process.kill()
