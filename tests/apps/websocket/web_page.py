"""The chat page in a browser, with the names of what is read and clicked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.apps.gradio_chat.browsing import SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Locator


class WebPage:
    """One open page. Its policy forbids ``wait_for_function``, so it is asked again and again."""

    def __init__(self, browser: Browser, url: str, **context: Any) -> None:
        """Open it.

        Args:
            browser: For a user of its own.
            url: Where the page is.
            **context: Options of the user's context, such as ``viewport``.
        """
        self.context = browser.new_context(**context)
        self.context.set_default_timeout(SECONDS)
        self.page = self.context.new_page()
        self.requested: list[str] = []
        self.sockets: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.on("websocket", lambda socket: self.sockets.append(socket.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._heard)
        self.page.goto(url)

    def _heard(self, message: Any) -> None:
        if "Content Security Policy" in message.text or "TrustedHTML" in message.text:
            self.errors.append(message.text)

    @property
    def box(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def send(self) -> Locator:
        return self.page.get_by_role("button", name="Send", exact=True)

    @property
    def stop(self) -> Locator:
        return self.page.get_by_role("button", name="Stop", exact=True)

    @property
    def answers(self) -> Locator:
        return self.page.locator("#turns .text")

    @property
    def figures(self) -> str:
        """Those of the last answer."""
        return str(self.page.locator("#turns .figures").last.inner_text())

    @property
    def problem(self) -> Locator:
        return self.page.locator("#turns .problem")

    @property
    def banner(self) -> Locator:
        return self.page.locator("#banner")

    def ready(self) -> None:
        """Wait until it is connected."""
        self.state("ready")

    def state(self, name: str) -> None:
        """Wait for a state of the connection."""
        self.page.locator(f"#status[data-state={name}]").wait_for()

    def configure(self, **values: object) -> None:
        """Fill in the settings and save them."""
        dialog = self.page.locator("dialog#settings")
        if not dialog.is_visible():
            self.page.get_by_role("button", name="Settings").click()
        for name, value in values.items():
            dialog.locator(f"[name={name}]").fill(str(value))
        dialog.get_by_role("button", name="Save").click()

    def ask(self, text: str) -> None:
        """Type a question and send it."""
        self.box.fill(text)
        self.box.press("Enter")

    def kept(self) -> dict[str, Any]:
        """The conversation as it is kept for a reload."""
        script = """() => {
          const key = Object.keys(sessionStorage).find((name) => name.startsWith("asyncgen chat "));
          return JSON.parse(sessionStorage.getItem(key));
        }"""
        found: dict[str, Any] = self.page.evaluate(script)
        return found

    def wait_longer(self, length: int) -> str:
        """Wait until the last answer is longer than this; return it."""
        return self.wait(
            lambda: self.answers.last.inner_text() if self.answers.count() else "",
            lambda text: len(text) > length,
        )

    def wait_done(self) -> str:
        """Wait until the answer has ended; return its text as it came."""
        self.send.wait_for()
        return str(self.kept()["turns"][-1]["content"])

    def wait(self, read: Callable[[], str], good: Callable[[str], bool]) -> str:
        """Ask until the reply is good."""
        end = time.monotonic() + SECONDS / 1000
        while not good(found := read()):
            assert time.monotonic() < end, f"never came; last was {found!r}"
            self.page.wait_for_timeout(10)
        return found
