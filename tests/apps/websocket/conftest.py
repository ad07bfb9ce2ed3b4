"""A browser, a model at a pace and pages of the chat, for the tests in a browser."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.gradio_chat.browsing import chromium
from tests.apps.websocket.relay import Relay, relaying
from tests.apps.websocket.web_page import WebPage
from tests.apps.websocket.web_serving import paced_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser

    from tests.apps.websocket.web_serving import Model


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def _model() -> Iterator[Model]:
    with paced_model() as found:
        yield found


@pytest.fixture
def model(_model: Model) -> Iterator[Model]:
    """The model at full speed, idle before and after."""
    _model.llm.delay = 0.0
    _model.llm.may_go_on.set()
    yield _model
    _model.llm.may_go_on.set()
    _model.wait_idle()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


@pytest.fixture
def wire(model: Model, stack: ExitStack) -> Callable[..., Relay]:
    """Makes a server, with settings, behind a wire."""

    def make(**settings: Any) -> Relay:
        return stack.enter_context(relaying(stack.enter_context(model.serving(**settings))))

    return make


@pytest.fixture
def visit(browser: Browser, stack: ExitStack) -> Callable[..., WebPage]:
    """Opens pages, each for a user of its own; none may fail or load anything from elsewhere."""

    def make(relay: Relay, path: str = "/", **context: Any) -> WebPage:
        url = f"http://127.0.0.1:{relay.port}"
        page = WebPage(browser, url + path, **context)

        def check() -> None:
            assert page.errors == []
            assert [one for one in page.requested if not one.startswith((url, "data:"))] == []
            page.context.close()

        stack.callback(check)
        return page

    return make


@pytest.fixture(scope="module")
def drawing_page(browser: Browser, _model: Model) -> Iterator[WebPage]:
    """A page to draw on."""
    with _model.serving() as port:
        page = WebPage(browser, f"http://127.0.0.1:{port}/")
        page.ready()
        yield page
        assert page.errors == []
        page.context.close()
