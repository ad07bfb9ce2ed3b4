"""Fixtures that every test file may use."""

from __future__ import annotations

import os

import pytest

# One OpenMP team per core is the fastest on an idle machine and the slowest on a busy one.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run every async test on both event loops."""
    return str(request.param)
