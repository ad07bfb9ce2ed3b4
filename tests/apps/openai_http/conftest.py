"""One server with the bundled model for all tests that do not need their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from asyncgen import AsyncLLM
from tests.apps.engine_process import EngineProcess
from tests.apps.openai_http.running import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.running import Running


@pytest.fixture(scope="package")
def demo() -> Iterator[Running]:
    """The bundled model behind a server without keys."""
    with running(lambda: AsyncLLM("demo", num_threads=1)) as served:
        yield served


@pytest.fixture(scope="package")
def demo_elsewhere() -> Iterator[Running]:
    """The same, with the model in another process."""
    with running(lambda: EngineProcess("demo", num_threads=1)) as served:
        yield served


@pytest.fixture(scope="package", params=["demo", "demo_elsewhere"], ids=["here", "elsewhere"])
def either(request: pytest.FixtureRequest) -> Running:
    """First the one, then the other."""
    found: Running = request.getfixturevalue(request.param)
    return found
