"""Start and end the servers of ``bench serve``, each as its documentation says."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from asyncgen_apps.bench.cores import pin
from asyncgen_apps.bench.workers import BenchError, own_environment

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


START_SECONDS = 300.0
END_SECONDS = 20.0
PAGE_SIZE = 32


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Model and sizes that a server serves.

    Attributes:
        folder: The checkpoint.
        dtype: Type of the weights.
        threads: Compute threads.
        streams: Most streams at a time.
        length: Most tokens of a stream.
    """

    folder: Path
    dtype: str
    threads: int
    streams: int
    length: int


def asyncgen_command(wanted: ServerOptions, port: int) -> list[str]:
    """Return the command line of ``asyncgen serve``."""
    options = ["--dtype", wanted.dtype, "--threads", str(wanted.threads), "--no-chat"]
    running = ["--max-running", str(wanted.streams)]
    command = [sys.executable, "-m", "asyncgen_apps.cli", "serve", "--model", str(wanted.folder)]
    return [*command, "--port", str(port), *options, *running]


def transformers_command(wanted: ServerOptions, port: int) -> list[str]:
    """Return the command line of ``transformers serve``."""
    program = "from transformers.cli.transformers import main; main()"
    options = ["--device", "cpu", "--dtype", wanted.dtype, "--log-level", "error"]
    command = [sys.executable, "-c", program, "serve", str(wanted.folder)]
    return [*command, "--host", "127.0.0.1", "--port", str(port), *options]


def continuous_command(wanted: ServerOptions, port: int) -> list[str]:
    """Return that of ``transformers serve --continuous-batching``, with a cache that fits the job.

    By default it takes 60 % of the memory, and minutes to fill it with zeros.
    """
    pages = 64 + wanted.streams * wanted.length * 3 // (2 * PAGE_SIZE)
    cache = ["--cb-block-size", str(PAGE_SIZE), "--cb-num-blocks", str(pages)]
    batching = ["--continuous-batching", *cache, "--cb-max-batch-tokens", "512"]
    return [*transformers_command(wanted, port), *batching]


SERVERS = {
    "asyncgen": asyncgen_command,
    "continuous": continuous_command,
    "plain": transformers_command,
}


class ServerProcess:
    """Process of one server; use as a context manager.

    Attributes:
        port: Port that it listens on.
    """

    def __init__(self, name: str, wanted: ServerOptions, cpus: frozenset[int]) -> None:
        """Start it.

        Args:
            name: A name in :data:`SERVERS`.
            wanted: Model and sizes.
            cpus: CPUs that it may use; empty allows all.
        """
        self._name = name
        self.port = _free_port()
        self._log = tempfile.TemporaryFile("w+")
        threads = {"OMP_NUM_THREADS": str(wanted.threads), "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            SERVERS[name](wanted, self.port),
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**own_environment(), **threads},
        )
        pin(self._process.pid, cpus)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def __enter__(self) -> Self:
        """Wait until it answers.

        Raises:
            BenchError: It ended, or takes too long.
        """
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > end:
                message = f"the server {self._name} did not start{self._last_words()}"
                self.close()
                raise BenchError(message)
            time.sleep(0.1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.close()

    def close(self) -> None:
        """Ask it to end, and kill it if it does not."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as got:
                return bool(got.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
