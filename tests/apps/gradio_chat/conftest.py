"""A served chat for the tests that talk to one. Gradio runs on asyncio, and so do its tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.apps.gradio_chat.serving import Served, serving

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def anyio_backend() -> str:
    """Run async tests on asyncio only."""
    return "asyncio"


@pytest.fixture(scope="package")
def _chat() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture
def chat(_chat: Served) -> Iterator[Served]:
    """The chat over the bundled model, idle before and after."""
    _chat.set()
    yield _chat
    _chat.wait_idle(60)
