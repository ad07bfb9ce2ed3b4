"""A served chat for the tests that talk to one, and a browser; all on asyncio, as Gradio is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.apps.gradio_chat.browsing import ChatPage, chromium
from tests.apps.gradio_chat.serving import Served, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Browser, chat: Served) -> Iterator[ChatPage]:
    """A new user's page; nothing on it may fail or leave the machine."""
    opened = ChatPage(browser, chat.url)
    yield opened
    assert opened.errors == []
    assert [u for u in opened.requested if not u.startswith((chat.url, "data:", "blob:"))] == []
    opened.context.close()
