"""Test the package's names, its exceptions, and that it does not load torch."""

from __future__ import annotations

import subprocess
import sys

import streamers
from streamers.errors import ProducerDiedError, ProducerError, StreamerError


def test_names_are_sorted_and_there() -> None:
    assert streamers.__all__ == sorted(streamers.__all__)
    assert all(hasattr(streamers, name) for name in streamers.__all__)


def test_importing_loads_neither_torch_nor_an_event_loop_library() -> None:
    code = (
        "import sys, streamers; print({'torch', 'tokenizers', 'trio', 'asyncgen'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_reader_can_catch_all_of_them() -> None:
    assert issubclass(ProducerDiedError, ProducerError)
    assert issubclass(ProducerError, StreamerError)
    assert issubclass(StreamerError, RuntimeError)
