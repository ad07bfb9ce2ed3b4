"""The chat page: what it may load, and one whole conversation in a browser over a real server.

The longer tests in a browser are in ``test_page_browser.py``.
"""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from asyncgen import STREAM_PARAMETERS
from asyncgen_apps.engine.end_words import END_WORDS
from asyncgen_apps.websocket.chat_page import PAGE, joined
from tests.apps.websocket.relay import relaying
from tests.apps.websocket.web_page import WebPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.apps.websocket.web_serving import Model

TEXT = joined()
QUESTION = "Tell me a story about a fox."


@pytest.mark.parametrize("tag", ["script", "style"])
def test_the_policy_names_the_script_and_the_style(tag: str) -> None:
    (inside,) = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", TEXT, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    assert f"{tag}-src 'sha256-{digest}';" in TEXT


def test_one_file_is_joined_from_sources_that_are_read_in_one_sitting() -> None:
    sources = {path.name: path.read_text(encoding="utf-8") for path in PAGE.iterdir()}
    assert "{{" not in TEXT
    for name, source in sources.items():
        assert source.count("\n") <= 250, name
        assert name == "page.html" or TEXT.count(source) == 1, f"{name} is not on the page"


def test_the_page_has_the_words_of_each_end() -> None:
    (table,) = re.findall(r"const ENDS = \{(.*?)\};", TEXT)
    assert dict(re.findall(r'(\w+): "(\w+)"', table)) == END_WORDS


def test_numbers_of_the_settings_have_the_ranges_of_the_library() -> None:
    fields = re.findall(r'<input name="(\w+)" type="number" ([^>]*)>', TEXT)
    assert {name for name, _ in fields} == {"max_new_tokens", "seed", "temperature", "top_p"}
    for name, attributes in fields:
        found = {key: float(value) for key, value in re.findall(r'(m\w\w)="(\d+)"', attributes)}
        own = STREAM_PARAMETERS[name].range
        if own is None:  # a seed: what a number of JavaScript holds to the last digit
            assert found == {"min": 0, "max": 2**53 - 1}
        else:
            limits = {"min": own.low, "max": own.high}
            assert found == {key: value for key, value in limits.items() if value is not None}
            assert not own.above and not own.below
            assert ('step="1"' in attributes) == own.whole


def test_the_file_for_another_web_server() -> None:
    command = [sys.executable, "-m", "asyncgen_apps.websocket.chat_page"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.decode() == TEXT


def test_the_policy_allows_nothing_but_sockets() -> None:
    found = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', TEXT)
    assert found is not None
    policy = dict(part.split(" ", 1) for part in found[1].split("; "))
    assert policy.pop("script-src").startswith("'sha256-")
    assert policy.pop("style-src").startswith("'sha256-")
    assert policy == {
        "default-src": "'none'",
        "img-src": "data:",
        "connect-src": "ws: wss:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }


def test_page_fetches_nothing_and_inserts_no_markup() -> None:
    addresses = set(re.findall(r"https?://[^'\" ]+", TEXT))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", TEXT)
    assert not re.search(r"\b(style|on[a-z]+)=[\"']", TEXT), "the policy forbids these attributes"


def test_an_answer_survives_a_reload_and_a_cut_and_stop_stops_it(
    browser: Browser, model: Model
) -> None:
    wanted = model.answer(
        [{"role": "user", "content": QUESTION}], seed=7, max_new_tokens=100, min_new_tokens=100
    )
    model.llm.delay, model.llm.asked = 0.01, 0
    with model.serving() as port, relaying(port) as relay:
        page = WebPage(browser, f"http://127.0.0.1:{relay.port}/")
        page.ready()
        page.configure(seed=7, max_new_tokens=100)
        page.ask(QUESTION)
        first = page.wait_longer(20)
        page.page.reload()
        second = page.wait_longer(len(first))
        assert second.startswith(first.rstrip())
        relay.cut()
        assert page.wait_done() == wanted.text
        assert page.figures.startswith("100 tokens · first after ")
        assert page.figures.endswith(" tokens/s · length")
        assert relay.connections >= 3
        assert model.llm.asked == 1

        model.llm.delay = 0.05  # by itself it would end after more than half a minute
        page.configure(max_new_tokens=800)
        page.ask("And then?")
        page.wait(page.answers.last.inner_text, lambda text: len(text) > 5)
        assert model.busy == 1
        page.stop.click()
        model.wait_idle()
        page.wait_done()
        assert page.figures.endswith(" · stopped")
        assert page.box.evaluate("(box) => box === document.activeElement")
        assert page.answers.count() == 2
        assert page.errors == []
        page.context.close()
