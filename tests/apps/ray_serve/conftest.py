"""A cluster of this machine with two engines, for the tests under the marker `ray`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from asyncgen_apps.ray_serve.settings import CLUSTER_ENV
from tests.apps.ray_serve.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]

# Serve reads them where it is first imported, which may be before there is a cluster.
for _variable, _value in CLUSTER_ENV.items():
    os.environ.setdefault(_variable, _value)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    pytest.importorskip("ray")
    os.environ["PYTHONPATH"] = f"{ROOT}:{ROOT / 'apps'}"
    os.environ.setdefault("RAY_worker_niceness", "0")
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.close()
