"""What keyboards, screen readers and strangers get of the page, in a headless Chromium."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.gradio_chat.browsing import ChatPage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from tests.apps.gradio_chat.serving import Served

pytestmark = [pytest.mark.timeout(300), pytest.mark.browser]

QUESTION = "Tell me a story about a fox."
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1200, "height": 900}},
    "dark": {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True},
}
SHOWN = (
    "<think>Let me *see*.</think>It's **bold** with `code` and [a link](https://a.example).\n\n"
    "![x](http://127.0.0.1:9/x.png)\n\n```python\n# comment\n@cache\ndef f(x: int) -> str:\n"
    "    return 'a' + 1.5\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote\n\n$$x^2$$"
)
ALLOWED: dict[str, str] = {}
"""Violations of Gradio's own parts that the page cannot mend, by rule, with the issue upstream."""
FOCUSED = "() => document.activeElement?.closest('#settings, #conversations, #box, #chat')?.id"


def _violations(page: Page) -> list[tuple[str, list[str]]]:
    """Return what axe-core calls serious or critical: the rule, and elements."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = axe.Axe().run(page).response["violations"]
    return [
        (each["id"], [node["html"][:200] for node in each["nodes"]])
        for each in found
        if each["impact"] in ("serious", "critical") and each["id"] not in ALLOWED
    ]


@pytest.mark.parametrize("look", LOOKS)
def test_nothing_serious_is_found_by_axe(browser: Browser, chat: Served, look: str) -> None:
    page = ChatPage(browser, chat.url, **LOOKS[look])
    page.page.locator("#chat .examples[role=group]").wait_for()
    assert _violations(page.page) == []
    chat.set(says=SHOWN)
    page.ask("Show me")
    page.wait_done()
    page.page.get_by_text("Thoughts").click()
    page.page.get_by_text("Let me see").wait_for()
    assert _violations(page.page) == []
    chat.set()
    page.page.locator("#settings .toggle-button").click()
    page.page.locator("#setting-max_new_tokens input").fill("0")
    for group in ("Repetition", "Length", "More"):
        page.page.locator(f"#group-{group} .label-wrap").click()
    page.page.locator("#setting-top_logprobs").wait_for()
    assert _violations(page.page) == []
    page.page.locator("#settings .toggle-button").click()
    page.page.locator("#settings:not(.open)").wait_for()
    page.ask("Again")
    page.failures.wait_for()
    assert _violations(page.page) == []
    page.tab("Probabilities")
    page.page.locator("#heat .token").nth(2).click()
    page.page.locator("#heat .card.shown").wait_for()
    assert _violations(page.page) == []
    page.context.close()


def test_everything_has_a_name_and_a_closed_panel_is_passed_over(
    chat: Served, page: ChatPage
) -> None:
    for role, name in (
        ("textbox", "Message"), ("button", "Send"), ("button", "Settings"), ("button", "Chats"),
        ("button", "Light or dark"), ("group", "Chats"), ("group", "Examples"),
    ):  # fmt: skip
        page.page.get_by_role(role, name=name, exact=True).first.wait_for()  # type: ignore[arg-type]
    gear = page.page.get_by_role("button", name="Settings", exact=True)
    assert gear.get_attribute("aria-expanded") == "false"
    gear.focus()
    page.page.keyboard.press("Tab")
    assert page.page.evaluate(FOCUSED) != "settings"
    gear.focus()
    page.page.keyboard.press("Enter")
    page.page.locator("#settings.open").wait_for()
    page.page.wait_for_function("!document.querySelector('#settings .sidebar-content').inert")
    assert gear.get_attribute("aria-expanded") == "true"
    page.page.keyboard.press("Tab")
    assert page.page.evaluate(FOCUSED) == "settings"


def test_keys_stop_an_answer_and_submit_an_edit(chat: Served, page: ChatPage) -> None:
    focused = "document.activeElement === document.querySelector('#box textarea')"
    chat.set(delay=0.02)
    page.ask(QUESTION)
    page.wait_longer(3)
    page.page.get_by_role("button", name="Stop", exact=True).click()
    page.page.wait_for_function(focused)
    assert chat.wait_idle(2) < 2
    page.send.wait_for()
    page.ask("And then?")
    page.page.wait_for_function("document.querySelectorAll('#chat .user.message').length == 2")
    page.wait_longer(3)
    page.page.keyboard.press("Escape")
    assert chat.wait_idle(2) < 2
    page.send.wait_for()
    chat.set(max_new_tokens=5)
    page.button("Edit").click()
    editing = page.page.locator("#chat textarea")
    editing.fill("Who")
    editing.press("Shift+Enter")
    editing.press("a")
    editing.press("Enter")
    editing.wait_for(state="detached")
    page.page.wait_for_function(focused)
    page.wait_done()
    assert chat.asked[-1][0][-1]["content"] == "Who\na"


def test_keys_are_heard_behind_a_button_that_goes_away(chat: Served, page: ChatPage) -> None:
    focused = "document.activeElement === document.querySelector('#box textarea')"
    chat.set(max_new_tokens=5)
    page.page.locator("#chat .examples button").first.focus()
    page.page.keyboard.press("Enter")
    page.wait_done()
    page.page.wait_for_function(focused)
    for name in ("Undo", "Retry"):
        page.ask(QUESTION)
        page.wait_done()
        page.button(name).focus()
        page.page.keyboard.press("Enter")
        page.page.wait_for_function(focused)
        page.send.wait_for()


def test_probabilities_by_keyboard(chat: Served, page: ChatPage) -> None:
    page.ask(QUESTION)
    page.wait_done()
    page.tab("Probabilities")
    page.page.locator("#heat .token").first.wait_for()
    tokens = page.page.get_by_label("Tokens", exact=True)
    for _ in range(4):
        page.page.keyboard.press("Tab")
        if tokens.evaluate("(one) => one === document.activeElement"):
            break
    pointed = page.page.locator("#heat .token.pointed")
    card = page.page.get_by_role("status").filter(has_text="%")
    assert pointed.text_content() == page.page.locator("#heat .token").first.text_content()
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("ArrowRight")
    assert pointed.text_content() == page.page.locator("#heat .token").nth(2).text_content()
    assert card.locator(".row").count() >= 5
    page.page.keyboard.press("End")
    assert pointed.text_content() == page.page.locator("#heat .token").last.text_content()
    page.page.keyboard.press("Escape")
    page.page.locator("#heat .card:not(.shown)").wait_for(state="attached")


def test_settings_that_differ_are_marked(chat: Served, page: ChatPage) -> None:
    page.page.locator("#settings .toggle-button").click()
    assert page.page.locator("#settings .differs").count() == 0
    page.page.locator("#setting-seed input").fill("3")
    page.page.locator("#setting-temperature input[type=number]").fill("0.9")
    page.page.locator("#setting-temperature input[type=number]").blur()
    line = page.page.locator("#differing")
    line.filter(has_text="differs from the model's defaults: seed, temperature").wait_for()
    assert page.page.locator("#settings .differs").count() == 3  # and the heading of one
    page.ask(QUESTION)
    page.wait_done()
    page.page.reload()
    page.ready()
    page.page.get_by_role("button", name=re.compile("^Settings: .*seed, temperature")).click()
    page.page.locator("#reset").click()
    page.page.locator("#differing:empty").wait_for(state="attached")
    assert page.page.locator("#settings .differs").count() == 0


def test_an_answer_cut_by_a_reload_is_marked(chat: Served, page: ChatPage) -> None:
    chat.set(delay=0.02)
    page.ask(QUESTION)
    page.wait_longer(20)
    page.page.wait_for_timeout(2500)  # it is kept every two seconds
    page.page.goto("about:blank")
    assert chat.wait_idle(5) < 5
    page.page.goto(chat.url)
    page.ready()
    page.folded.last.filter(has_text="cut off: the page was left").wait_for()
    assert page.answers.last.inner_text()


@contextmanager
def _listening() -> Iterator[tuple[str, list[str]]]:
    """Listen on another port; give its address and what it hears."""
    heard: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", heard
        finally:
            server.shutdown()
            thread.join()


FETCHING = """![a]({there}/1)
<img src="{there}/2" srcset="{there}/3 2x">

![relative](/logout)

<p style="background: url({there}/4)">p</p><div style="list-style: url({there}/5)">d</div>
<video src="{there}/6" poster="{there}/7" autoplay></video><audio src="{there}/8" autoplay></audio>
<video autoplay><source src="{there}/9"><track src="{there}/10" default></video>
<svg width="9" height="9"><image href="{there}/11" width="9" height="9"/><use href="{there}/12#a"/>
<rect width="9" height="9" fill="url({there}/13#a)" style="fill: url({there}/14)"/></svg>
<iframe src="{there}/15"></iframe><object data="{there}/16"></object><embed src="{there}/17">
<link rel="stylesheet" href="{there}/18"><link rel="preload" as="image" href="{there}/19">
<style>p {{ background: url({there}/20) }} @import "{there}/21";</style>
<input type="image" src="{there}/22"><table background="{there}/23"><tr><td>t</td></tr></table>
<meta http-equiv="refresh" content="0; url={there}/24"><script src="{there}/25"></script>
<picture><source srcset="{there}/26"><img src="{there}/27"></picture>
<a href="{there}/28" ping="{there}/29">link</a><img src=x onerror="fetch('{there}/30')">

[![b]({there}/31)]({there}/32) **The end.**"""


@pytest.mark.parametrize("place", ["answer", "thought", "question"])
def test_answers_load_nothing_from_elsewhere(chat: Served, page: ChatPage, place: str) -> None:
    with _listening() as (there, heard):
        text = FETCHING.format(there=there)
        chat.set(says=f"<think>{text}</think>Ok." if place == "thought" else text)
        page.page.request.get(f"{there}/works")
        page.ask(text.replace("\n\n", "\n") if place == "question" else "Show me")
        page.send.wait_for()
        if place == "thought":
            page.page.get_by_text("Thoughts").click()
        page.page.get_by_text("The end.").last.wait_for()
        page.page.wait_for_timeout(1000)
        assert heard == ["/works"]
        prose = page.page.locator("#chat .prose")
        assert prose.locator(f"[src*='{there}'], [poster], [style*='url']").count() == 0
        assert f"[image, not loaded: a {there}/1]" in prose.locator("img").evaluate_all(
            "(all) => all.map((one) => one.alt)"
        )
