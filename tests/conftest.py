"""Fixtures that every test file may use."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

# The tests run in as many processes as there are cores: each computes on one.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


# How long an example takes says more of the machine, which may stand still, than of the code.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("new", unhurried)
settings.register_profile("same", unhurried, derandomize=True)


def pytest_configure(config: pytest.Config) -> None:
    """Examples are the same in every run of the gate; the big counts look for new ones."""
    settings.load_profile("new" if config.option.markexpr == "soak" else "same")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, obj: object
) -> list[pytest.Item] | None:
    """Make no cases of a test that the marker expression leaves out: soaks have thousands."""
    expression = collector.config.option.markexpr
    marks = getattr(obj, "pytestmark", ())
    left_out = isinstance(marks, list) and any(f"not {mark.name}" in expression for mark in marks)
    return [] if left_out else None


def pytest_collection() -> None:
    """Collect without the garbage collector: all of it stays, and searching it takes as long."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave it out when tests collect garbage, as many do."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave out what a file has imported, and what lives as long, behind its last test."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()  # what was left open is told here, and not frozen
        gc.freeze()


def pytest_sessionfinish() -> None:
    """Have pytest's last look for what was left open see all of it."""
    gc.unfreeze()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run every async test on both event loops."""
    return str(request.param)
