"""Conversations that the chat page keeps, in a headless Chromium: list, tabs, edits, offline."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.apps.websocket.web_page import WebPage

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser

    from tests.apps.websocket.relay import Relay
    from tests.apps.websocket.web_serving import Model

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

STORED = """async () => {
  await library.list();
  const titles = await library.list();
  return Promise.all(titles.map((one) => library.get(one.id)));
}"""
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
ANSWER = (
    "<think>Hm</think># A\n> q [l](https://x.y)\n\n- a\n  1. b\n\n```py\nc\n```\n"
    "| d | e |\n|---|---|\n| f | g |\n\n$h$\n\n$$\ni\n$$\n\n---\n`j`"
)


def _stored(page: WebPage) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = page.page.evaluate(STORED)
    return found


def _questions(page: WebPage) -> list[list[str]]:
    """Of each conversation that is kept, the questions."""
    kept = [[turn["content"] for turn in one["turns"][::2]] for one in _stored(page)]
    return sorted(kept)


def _wait_kept(page: WebPage, wanted: list[list[str]]) -> None:
    page.wait(lambda: str(_questions(page)), str(wanted).__eq__)


def _tab(page: WebPage) -> WebPage:
    """Open another tab of the same user."""
    other = WebPage.__new__(WebPage)
    other.context, other.page = page.context, page.context.new_page()
    other.requested, other.sockets, other.errors = page.requested, page.sockets, page.errors
    other.page.on("pageerror", lambda error: page.errors.append(str(error)))
    other.page.goto(page.page.url)
    other.ready()
    return other


def _wait_focused(it: Any) -> None:
    """Wait until something has the focus."""
    it.page.wait_for_function("(it) => it === document.activeElement", arg=it.element_handle())


def _press(page: WebPage, name: str) -> None:
    page.page.get_by_role("button", name=name, exact=True).first.click()


@pytest.fixture
def page(wire: Callable[..., Relay], visit: Callable[..., WebPage]) -> WebPage:
    """A page that is connected, for short answers."""
    found = visit(wire())
    found.ready()
    found.configure(max_new_tokens=4, seed=1)
    return found


def test_new_chat_keeps_the_old_one_and_delete_can_be_undone(page: WebPage) -> None:
    page.ask("One")
    page.wait_done()
    answer = page.answers.last.inner_text()
    _press(page, "New chat")
    page.ask("Two")
    page.wait_done()
    _wait_kept(page, [["One"], ["Two"]])

    _press(page, "Conversations")
    rows = page.page.locator("#conversations li")
    rows.nth(1).wait_for()
    assert [row.split("\n")[0] for row in rows.all_inner_texts()] == ["Two", "One"]
    assert rows.first.locator("button").first.get_attribute("aria-current") == "true"
    page.page.get_by_role("button", name="One").first.click()
    assert page.answers.last.inner_text() == answer
    _wait_focused(page.box)

    _press(page, "Conversations")
    page.page.get_by_role("button", name="Delete “One”").click()
    undo = page.page.get_by_role("button", name="Undo: keep “One”")
    undo.wait_for()
    _wait_kept(page, [["Two"]])
    assert page.answers.count() == 0, "it was on the screen"
    _wait_focused(undo)
    page.page.keyboard.press("Enter")
    _wait_kept(page, [["One"], ["Two"]])
    page.page.keyboard.press("Escape")
    assert page.answers.last.inner_text() == answer, "it is on the screen again"

    _press(page, "Conversations")
    _press(page, "Delete all")
    _wait_kept(page, [])
    page.page.get_by_role("button", name="Undo: keep 2 conversations").click()
    _wait_kept(page, [["One"], ["Two"]])


def test_a_new_tab_has_the_conversations(page: WebPage) -> None:
    page.ask("One")
    answer = page.wait_done()
    _wait_kept(page, [["One"]])
    other = _tab(page)
    assert other.answers.count() == 0
    _press(other, "Conversations")
    other.page.locator("#conversations .title").click()
    other.answers.last.wait_for()
    assert other.answers.last.inner_text() == answer.strip()

    page.ask("Two")
    page.wait_done()
    other.wait(lambda: str(other.answers.count()), "2".__eq__)
    _press(page, "Conversations")
    _press(other, "Conversations")
    _press(page, "Delete “One”")
    other.wait(lambda: str(other.page.locator("#conversations li").count()), "0".__eq__)


def test_two_tabs_that_write_at_once_lose_nothing(page: WebPage) -> None:
    page.ask("One")
    page.wait_done()
    _wait_kept(page, [["One"]])
    other = _tab(page)
    _press(other, "Conversations")
    other.page.locator("#conversations .title").click()
    other.answers.last.wait_for()
    other.configure(max_new_tokens=4, seed=1)

    # Neither hears of the other before both have written.
    begin = """(name) => {
      const said = { role: "user", content: name }, reply = { role: "assistant", content: name };
      const turns = [...chat.turns, said, reply];
      for (let end = 2; end <= 30; end++) {
        library.keep(chat.id, [...chat.turns, said]);
        library.keep(`${name} ${end}`, [{ role: "user", content: `${name} ${end}` }]);
      }
      library.keep(chat.id, turns);
      chat.turns = turns;
      drawAll();
      library.on.changed = hear;
      heard.forEach(hear);
    }"""
    deaf = """() => {
      window.heard = [];
      window.hear = library.on.changed;
      library.on.changed = (id) => heard.push(id);
    }"""
    tabs = {"here": page, "there": other}
    for tab in tabs.values():
        tab.page.evaluate(deaf)
    for name, tab in tabs.items():
        tab.page.evaluate(f"(name) => setTimeout(() => ({begin})(name), 100)", name)
    wanted = [["One", name] for name in tabs]
    wanted += [[f"{name} {number}"] for name in tabs for number in range(2, 31)]
    _wait_kept(page, sorted(wanted))
    shown = {name: tab.page.locator("#turns .user").last.inner_text() for name, tab in tabs.items()}
    assert shown == {"here": "here", "there": "there"}
    ids = [tab.page.evaluate("chat.id") for tab in tabs.values()]
    assert ids[0] != ids[1]
    notices = [tab.page.locator("#notice").is_visible() for tab in tabs.values()]
    assert sorted(notices) == [False, True], "the one that became a copy says so"


def test_an_answer_that_is_left_is_kept_as_far_as_it_came(model: Model, page: WebPage) -> None:
    model.llm.delay = 0.02
    page.configure(max_new_tokens=500)
    page.ask("One")
    text = page.wait_longer(20)
    _press(page, "New chat")
    model.wait_idle()
    _wait_kept(page, [["One"]])
    answer = _stored(page)[0]["turns"][1]
    assert answer["content"].startswith(text)
    assert answer["figures"].endswith("stopped")


def test_the_oldest_are_deleted_beyond_the_bound(page: WebPage) -> None:
    page.page.evaluate(
        """() => {
          for (let number = 0; number < MOST_CONVERSATIONS; number++)
            library.keep(`old ${number}`, [{ role: "user", content: `Old ${number}` }]);
        }"""
    )
    page.ask("One")
    page.wait_done()
    notice = page.page.locator("#notice")
    notice.wait_for()
    assert "keeps 200 conversations. The oldest was deleted: “Old 0”." in notice.inner_text()
    kept = _questions(page)
    assert len(kept) == 200
    assert ["One"] in kept and ["Old 0"] not in kept and ["Old 1"] in kept


def test_full_storage_is_said(page: WebPage) -> None:
    session = page.context.new_cdp_session(page.page)
    origin = page.page.url.rstrip("/")
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": 20_000})
    page.page.evaluate(
        "(text) => library.keep('big', [{ role: 'user', content: text }])",
        os.urandom(2_000_000).hex(),
    )
    page.banner.wait_for()
    assert "storage is full" in page.banner.inner_text()
    page.ask("One")
    page.wait_done()
    page.page.get_by_role("button", name="Delete others").click()
    assert page.page.get_by_role("dialog", name="Conversations").is_visible()
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin})
    page.page.keyboard.press("Escape")
    page.ask("Two")
    page.wait_done()
    _wait_kept(page, [["One", "Two"]])


def test_a_browser_without_a_database_says_so(
    wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    page = visit(wire())
    page.page.add_init_script("indexedDB.open = () => { throw new DOMException('not here'); }")
    page.page.reload()
    page.ready()
    page.configure(max_new_tokens=4)
    page.ask("One")
    text = page.wait_done()
    assert "not kept beyond this tab: not here" in page.banner.inner_text()
    _press(page, "Conversations")
    page.page.get_by_text("This browser keeps no conversations: not here").wait_for()
    page.page.keyboard.press("Escape")
    page.page.reload()
    page.ready()
    assert page.kept()["turns"][-1]["content"] == text


def test_a_question_is_edited_and_sent_again(model: Model, page: WebPage) -> None:
    for question in ("One", "Two"):
        page.ask(question)
        page.wait_done()
    before = page.kept()["turns"]
    _press(page, "Edit this message")
    box = page.page.get_by_role("textbox", name="Edit message")
    assert box.input_value() == "One"
    _wait_focused(box)
    assert page.page.get_by_text("What was said after it is replaced.").is_visible()
    box.press("Escape")
    assert page.kept()["turns"] == before
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.page.evaluate(focused) == "Edit this message"

    page.page.keyboard.press("Enter")
    box.fill("Three")
    box.press("Enter")
    assert (
        page.wait_done()
        == model.answer([{"role": "user", "content": "Three"}], max_new_tokens=4, seed=1).text
    )
    _wait_kept(page, [["Three"]])
    page.page.reload()
    page.ready()
    _press(page, "Undo")
    _wait_kept(page, [["One", "Two"]])
    assert page.kept()["turns"] == before
    assert page.answers.count() == 2

    model.llm.delay = 0.05
    page.configure(max_new_tokens=500)
    page.page.get_by_role("button", name="Edit this message").last.click()
    box.fill("Four")
    box.press("Enter")
    page.wait_longer(5)
    _press(page, "Undo")
    model.wait_idle()
    _wait_kept(page, [["One", "Two"]])


def test_being_offline_is_shown_at_once_and_the_answer_goes_on(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    relay = wire()
    page = visit(relay)
    page.ready()
    model.llm.delay = 0.02
    page.configure(max_new_tokens=300, seed=1)
    page.ask("One")
    text = page.wait_longer(5)
    relay.hold()
    page.context.set_offline(True)
    page.page.locator("#status[data-state=offline]").wait_for(timeout=1000)
    page.page.get_by_text("This device is offline").wait_for()  # nothing came: it is given up
    page.page.get_by_text("waiting for the connection").wait_for()
    relay.cut()
    relay.go_on()
    page.context.set_offline(False)
    page.ready()
    assert page.banner.is_hidden()
    assert page.wait_longer(len(text) + 20).startswith(text)
    page.stop.click()
    page.wait_done()


def test_a_server_on_this_machine_is_reached_without_a_network(page: WebPage) -> None:
    """Only the news of the browser is made up here; the wire is whole."""
    page.page.evaluate(
        """() => {
          Object.defineProperty(navigator, "onLine", { get: () => false, configurable: true });
          window.states = [];
          new MutationObserver(() => states.push($("status").dataset.state))
            .observe($("status"), { attributes: true });
          dispatchEvent(new Event("offline"));
        }"""
    )
    page.ready()
    assert page.page.evaluate("states") == ["offline", "ready"]
    page.ask("One")
    page.wait_done()


@pytest.mark.parametrize(
    "context", [{}, {"color_scheme": "dark"}, PHONE, {**PHONE, "color_scheme": "dark"}]
)
def test_axe_finds_nothing(
    wire: Callable[..., Relay], visit: Callable[..., WebPage], context: dict[str, Any]
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    # The policy lets no script in from outside but those of the tools.
    page = visit(wire(), bypass_csp=True, **context)
    page.ready()

    def check(what: str) -> None:
        page.page.wait_for_timeout(100)
        found = axe.run(page.page, options={"rules": {"region": {"enabled": True}}})
        problems = [
            (one["id"], [node["html"][:200] for node in one["nodes"]])
            for one in found.response["violations"]
        ]
        assert problems == [], what

    check("the welcome")
    page.configure(max_new_tokens=4)
    for question in ("One", "Two"):
        page.box.fill(question)
        page.send.click()
        page.wait_done()
    page.page.evaluate(
        """(content) => {
          Object.assign(chat.turns[1], { content, problem: "A problem." });
          drawAll();
          showBanner("The connection is lost.", "Try now");
          showNotice("Something was done.", "Undo");
        }""",
        ANSWER,
    )
    page.page.locator("details.thought").first.evaluate("(one) => { one.open = true; }")
    check("a conversation")
    _press(page, "Edit this message")
    check("an edit")
    page.page.keyboard.press("Escape")
    _press(page, "Conversations")
    page.page.locator("#conversations li").first.wait_for()
    check("the list")
    page.page.keyboard.press("Escape")
    _press(page, "Settings")
    check("the settings")


def test_on_a_phone_everything_fits_and_can_be_touched(
    wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    page = visit(wire(), **PHONE)
    page.ready()
    page.configure(max_new_tokens=4)
    page.box.fill("A long question " * 20)
    page.send.tap()
    page.wait_done()
    page.page.evaluate("(content) => { chat.turns[1].content = content; drawAll(); }", ANSWER)
    for act in ("Edit this message", "Conversations"):
        _press(page, act)
        page.page.wait_for_timeout(100)
        sizes = page.page.evaluate(
            """() => [
              document.documentElement.scrollWidth,
              ...[...document.querySelectorAll("header button, .editing button, #list button")]
                .filter((one) => one.checkVisibility())
                .map((one) => one.getBoundingClientRect().height),
            ]"""
        )
        assert sizes[0] <= 390
        assert min(sizes[1:]) >= 40, sizes


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_focus_is_visible(browser: Browser, model: Model, scheme: Any) -> None:
    with model.serving() as port:
        page = WebPage(browser, f"http://127.0.0.1:{port}/", color_scheme=scheme)
        page.ready()
        page.configure(max_new_tokens=4)
        page.ask("One")
        page.wait_done()
        seen = set()
        for _ in range(12):
            page.page.keyboard.press("Tab")
            name, shown = page.page.evaluate(
                """() => {
                  const one = document.activeElement, style = getComputedStyle(one);
                  const box = one.closest("#box");
                  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
                  return [one.ariaLabel ?? one.id, ring || (box !== null && one.id === "question")];
                }"""
            )
            assert shown or not name, name
            seen.add(name)
        assert {"Conversations", "New chat", "Settings", "Edit this message", "Try again"} <= seen
        page.context.close()
