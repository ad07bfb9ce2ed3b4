"""A headless Chromium, and a page of the chat in it with the names of what is clicked."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Locator, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome")
ANSWERS = "#chat .bot [data-testid=bot] > .message-content .prose"
SECONDS = 60_000
"""Milliseconds: patience with a busy machine."""


def find_chromium() -> str | None:
    """The browser to test with; ``CHROMIUM`` names another."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser; skips the test where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = find_chromium()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class ChatPage:
    """One open page of the chat."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        """Open it and wait until it can be typed into.

        Args:
            browser: A browser, for a user of its own; or the context of one, for a second page.
            url: Where the chat is.
            **context: Options of the user's context, such as ``viewport``.
        """
        fresh = hasattr(browser, "new_context")
        self.context = browser.new_context(**context) if fresh else browser
        self.context.set_default_timeout(SECONDS)
        self.page: Page = self.context.new_page()
        self.requested: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.on("requestfailed", self._forget_what_the_policy_stops)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(url)
        self.ready()

    def _forget_what_the_policy_stops(self, request: Request) -> None:
        """Take back a request that never leaves the browser."""
        if request.failure == "csp":
            self.requested.remove(request.url)

    def ready(self) -> None:
        """Wait until the page has drawn what the browser kept."""
        self.page.locator("#picker label.selected").wait_for(state="attached")

    @property
    def box(self) -> Locator:
        return self.page.locator("#box textarea")

    @property
    def stop(self) -> Locator:
        return self.page.locator("#box .stop-button")

    @property
    def send(self) -> Locator:
        return self.page.locator("#box .submit-button")

    @property
    def answers(self) -> Locator:
        """The texts of the answers, without reasoning and figures."""
        return self.page.locator(ANSWERS)

    @property
    def questions(self) -> Locator:
        return self.page.locator("#chat .user .prose")

    @property
    def folded(self) -> Locator:
        """The lines to unfold: status, reasoning, figures."""
        return self.page.locator("#chat .bot .thought-group > .title")

    @property
    def failures(self) -> Locator:
        """The errors, framed."""
        return self.page.locator("#chat .failure")

    @property
    def written(self) -> str:
        """The last answer as the model wrote it, before it is rendered."""
        label = self.answers.last.locator("xpath=ancestor::*[@data-testid='bot']")
        return str(label.get_attribute("aria-label")).split("'s message: ", 1)[1]

    def count_updates(self) -> None:
        """Count from now on how often the last answer changes on the screen."""
        self.page.evaluate(
            """(selector) => {
              window.updates = 0;
              window.began = performance.now();
              let before = "";
              const look = () => {
                const text = [...document.querySelectorAll(selector)].at(-1)?.textContent ?? "";
                window.updates += text !== before;
                before = text;
              };
              new MutationObserver(look).observe(document.querySelector("#chat"),
                { subtree: true, childList: true, characterData: true });
            }""",
            ANSWERS,
        )

    def updates(self) -> tuple[int, float]:
        """Return how many changes there were, and in how many seconds."""
        count, ms = self.page.evaluate("[window.updates, performance.now() - window.began]")
        return int(count), float(ms) / 1000

    def ask(self, text: str) -> None:
        """Type a question and send it."""
        self.box.fill(text)
        self.box.press("Enter")
        self.page.wait_for_function("document.querySelector('#box textarea').value === ''")

    def button(self, name: str) -> Locator:
        """A button below the last message that has it."""
        return self.page.get_by_role("button", name=name, exact=True).last

    def tab(self, name: str) -> None:
        """Go to a tab."""
        self.page.get_by_role("tab", name=name).click()

    def wait_longer(self, length: int) -> str:
        """Wait until the last answer is longer than this; return it."""
        self.page.wait_for_function(
            """([selector, length]) => {
              const found = [...document.querySelectorAll(selector)];
              return found.length && found.at(-1).innerText.length > length;
            }""",
            arg=[ANSWERS, length],
        )
        return self.answers.last.inner_text()

    def wait_done(self) -> str:
        """Wait until the answer has ended and is drawn; return it.

        The text is drawn later than the button: it is there when a few pictures are alike.
        """
        self.send.wait_for()
        self.page.evaluate("window.seen = ['', 0]")
        self.page.wait_for_function(
            """(selector) => {
              const text = [...document.querySelectorAll(selector)].at(-1)?.innerText ?? "";
              window.seen = [text, text && text === window.seen[0] ? window.seen[1] + 1 : 0];
              return window.seen[1] >= 3;
            }""",
            arg=ANSWERS,
        )
        return self.answers.last.inner_text()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something outside of the page, and have the page go on meanwhile."""
        end = time.monotonic() + SECONDS / 1000
        while not condition():
            assert time.monotonic() < end, "it never came"
            self.page.wait_for_timeout(10)
