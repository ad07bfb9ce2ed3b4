"""Fixtures that every test file may use."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# The tests run in as many processes as there are cores: each computes on one.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


# Without a deadline: a machine that is busy with something else is no failure.
settings.register_profile("same", derandomize=True, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """Examples are the same in every run of the gate; the big counts look for new ones."""
    if config.option.markexpr != "soak":
        settings.load_profile("same")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run every async test on both event loops."""
    return str(request.param)
