"""The chat in a headless Chromium, over the bundled model."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest

from tests.apps.gradio_chat.browsing import ChatPage
from tests.apps.gradio_chat.serving import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

    from tests.apps.gradio_chat.serving import Served

pytestmark = pytest.mark.timeout(300)

QUESTION = "Tell me a story about a fox."
PHONE = {"width": 375, "height": 780}
TOO_SMALL = """() => {
  const small = [];
  const all = "button, input, textarea, [role=tab], #picker label, .thought-group > .title";
  for (const one of document.querySelectorAll(all)) {
    const { width, height, x, y } = one.getBoundingClientRect();
    // Its label is what is hit in place of a radio button, the title in place of its arrow.
    const seen = one.checkVisibility({ opacityProperty: true, visibilityProperty: true })
      && x + width > 0 && x < innerWidth && y + height > 0 && y < innerHeight
      && !one.closest("[aria-hidden=true]") && !one.matches(".title button");
    if (seen && (width < 40 || height < 40)) small.push([one.outerHTML, width, height]);
  }
  return small;
}"""


@pytest.mark.gate
def test_an_answer_grows_and_stop_stops_it_and_closing_the_tab_too(
    chat: Served, page: ChatPage
) -> None:
    chat.set(delay=0.1)  # by itself it would end after more than half a minute
    page.count_updates()
    page.ask(QUESTION)
    first = page.wait_longer(10)
    longer = page.wait_longer(len(first))
    count, seconds = page.updates()
    assert 2 <= count <= seconds * 10 + 1
    assert longer.startswith(first.rstrip())
    assert page.box.input_value() == ""
    page.stop.click()
    chat.wait_idle(30)
    kept = page.wait_done()
    assert len(kept) >= len(longer)
    assert re.search(r"tokens · first after .* tokens/s · stopped", page.folded.last.inner_text())

    page.ask("And then?")
    page.page.wait_for_function("document.querySelectorAll('#chat .bot.message').length == 2")
    chat.wait_busy()
    page.page.close()
    chat.wait_idle(30)


@pytest.mark.browser
def test_stop_and_closing_before_the_first_token(chat: Served, page: ChatPage) -> None:
    chat.set(says="")
    page.ask(QUESTION)
    page.page.get_by_text("Reading the prompt").wait_for()
    assert chat.busy == 1
    page.stop.click()
    assert chat.wait_idle(2) < 2
    page.send.wait_for()
    assert "stopped" in page.folded.last.inner_text()
    page.ask("Again?")
    page.page.get_by_text("Reading the prompt").wait_for()
    page.page.close()
    assert chat.wait_idle(2) < 2


@pytest.mark.browser
def test_retry_edit_and_undo(chat: Served, page: ChatPage) -> None:
    chat.set(seed=1)
    page.ask(QUESTION)
    first = page.wait_done()
    chat.set(delay=0.02)
    page.button("Retry").click()
    page.stop.wait_for()
    page.wait_longer(3)
    page.stop.click()
    assert chat.wait_idle(2) < 2
    assert page.wait_done() != first
    assert page.questions.all_inner_texts() == [QUESTION]

    chat.set(delay=0.02)
    page.button("Edit").click()
    editing = page.page.locator("#chat textarea")
    box = editing.bounding_box()
    assert box is not None and box["width"] > 600 and box["height"] > 100
    editing.fill("Never mind")
    editing.press("Escape")
    editing.wait_for(state="detached")
    assert page.questions.all_inner_texts() == [QUESTION]
    assert page.box.evaluate("(box) => box === document.activeElement")
    page.button("Edit").click()
    page.page.locator("#chat textarea").fill("Who are you?")
    page.button("Submit").click()
    page.page.get_by_text("Who are you?", exact=True).first.wait_for()
    page.wait_longer(3)
    page.stop.click()
    assert chat.wait_idle(2) < 2
    page.wait_done()
    assert page.questions.all_inner_texts() == ["Who are you?"]
    assert chat.asked[-1][0] == [{"role": "user", "content": "Who are you?"}]

    page.button("Undo").click()
    page.page.locator("#chat .placeholder").wait_for()
    assert page.box.input_value() == "Who are you?"


@pytest.mark.browser
def test_conversations_survive_a_reload(chat: Served, page: ChatPage) -> None:
    page.ask("Who are you?")
    first = page.wait_done()
    page.page.locator("#new-chat").click()
    page.page.locator("#chat .placeholder").wait_for()
    page.ask(QUESTION)
    second = page.wait_done()
    page.page.reload()
    page.ready()
    page.page.get_by_text(second[:30]).first.wait_for()
    titles = page.page.locator("#picker label")
    assert [title.strip() for title in titles.all_inner_texts()] == [QUESTION, "Who are you?"]
    titles.nth(1).click()
    page.page.get_by_text(first[:30]).first.wait_for()
    page.ask("And then?")
    page.page.wait_for_function("document.querySelectorAll('#chat .user.message').length == 2")
    page.wait_done()
    assert [m["content"] for m in chat.asked[-1][0]] == ["Who are you?", first, "And then?"]
    page.page.locator("#delete-chat").click()
    page.page.get_by_text(second[:30]).first.wait_for()
    assert titles.count() == 1
    page.page.get_by_role("button", name="Bring back “Who are you?”").click()
    page.page.get_by_text(first[:30]).first.wait_for()
    assert titles.count() == 2
    page.page.locator("#restore-chat").wait_for(state="hidden")


@pytest.mark.browser
def test_a_reload_in_the_middle_keeps_what_was_there_and_stops(
    chat: Served, page: ChatPage
) -> None:
    chat.set(delay=0.02)
    page.ask(QUESTION)
    page.wait_longer(20)
    page.page.reload()
    assert chat.wait_idle(2) < 2
    page.ready()
    page.questions.first.wait_for()
    assert page.questions.all_inner_texts() == [QUESTION]


@pytest.mark.browser
def test_answer_continues_while_another_chat_is_open(chat: Served, page: ChatPage) -> None:
    chat.set(delay=0.005, max_new_tokens=150, min_new_tokens=150)
    page.ask(QUESTION)
    page.wait_longer(3)
    page.page.locator("#new-chat").click()
    page.page.locator("#chat .placeholder").wait_for()
    chat.wait_idle(20)
    assert page.answers.count() == 0
    page.page.locator("#picker label").nth(1).click()
    assert len(page.wait_longer(100)) > 100
    assert "150 tokens" in page.folded.last.inner_text()


@pytest.mark.browser
def test_a_chat_that_comes_late_is_drawn_as_it_is_by_then(chat: Served, page: ChatPage) -> None:
    chat.set(delay=0.4, max_new_tokens=60, min_new_tokens=60)
    page.ask(QUESTION)
    page.wait_longer(3)
    page.page.locator("#new-chat").click()
    page.page.locator("#chat .placeholder").wait_for()
    late: list[Route] = []
    page.page.route("**/gradio_api/run/**", lambda route: late.append(route), times=1)
    with page.page.expect_request("**/gradio_api/run/**"):
        page.page.locator("#picker label").nth(1).click()
    page.until(lambda: bool(late))
    got = late[0].fetch()  # the answer so far
    chat.set()  # the rest of it comes at once
    end = page.folded.filter(has_text="60 tokens")
    end.wait_for()  # has overtaken it
    with page.page.expect_request("**/gradio_api/queue/join**"):
        late[0].fulfill(response=got)
    end.wait_for()
    page.send.wait_for()


@pytest.mark.browser
def test_two_users_at_once(chat: Served, page: ChatPage, browser: Browser) -> None:
    chat.set(delay=0.01)
    other = ChatPage(browser, chat.url)
    page.ask(QUESTION)
    other.ask("Who are you?")
    mine, theirs = page.wait_longer(5), other.wait_longer(5)
    assert chat.busy == 2
    page.wait_longer(len(mine))
    other.wait_longer(len(theirs))
    other.stop.click()
    other.wait_done()
    assert chat.busy == 1
    assert other.questions.all_inner_texts() == ["Who are you?"]
    other.context.close()
    assert chat.busy == 1
    page.stop.click()
    page.wait_done()


@pytest.mark.browser
def test_two_tabs_of_one_user_lose_nothing(chat: Served, page: ChatPage) -> None:
    page.ask("Who are you?")
    page.wait_done()
    other = ChatPage(page.context, chat.url)
    other.questions.first.wait_for()
    other.page.locator("#new-chat").click()
    other.page.locator("#chat .placeholder").wait_for()
    other.ask(QUESTION)
    other.wait_done()
    chat.set(delay=0.01)
    page.ask("And then?")
    page.wait_longer(3)
    other.page.locator("#picker label").nth(1).click()  # it grows here as well
    other.page.wait_for_function("document.querySelectorAll('#chat .user.message').length == 2")
    other.wait_longer(len(other.wait_longer(3)))
    other.stop.click()
    page.wait_done()
    other.wait_done()
    page.page.locator("#delete-chat").click()  # the other tab follows, by itself
    other.page.wait_for_function("document.querySelectorAll('#picker label').length == 1")
    other.page.get_by_text(QUESTION).last.wait_for()
    page.page.locator("#restore-chat").click()
    other.page.wait_for_function("document.querySelectorAll('#picker label').length == 2")
    assert other.questions.all_inner_texts() == [QUESTION]
    other.page.close()
    page.page.reload()
    page.ready()
    titles = page.page.locator("#picker label").all_inner_texts()
    assert [title.strip() for title in titles] == [QUESTION, "Who are you?"]
    assert page.questions.all_inner_texts() == ["Who are you?", "And then?"]


@pytest.mark.browser
def test_the_place_in_the_queue_and_a_queue_that_is_full(
    chat: Served, page: ChatPage, browser: Browser
) -> None:
    second, third = ChatPage(browser, chat.url), ChatPage(browser, chat.url)
    chat.set(delay=0.02)
    chat.occupy(2)
    page.ask(QUESTION)
    page.page.get_by_text("In the queue: next").wait_for()
    second.ask(QUESTION)
    second.page.get_by_text("In the queue: 1 ahead").wait_for()
    third.ask(QUESTION)
    third.failures.wait_for()
    assert "The server is busy: try again in" in third.failures.inner_text()
    third.send.wait_for()
    assert chat.busy == 4
    page.page.close()
    assert chat.wait_idle(2, busy=3) < 2
    second.page.get_by_text("In the queue: next").wait_for()
    third.button("Retry").click()
    third.page.get_by_text("In the queue: 1 ahead").wait_for()
    third.stop.click()
    assert chat.wait_idle(2, busy=3) < 2
    third.send.wait_for()
    chat.occupy(0)
    second.wait_longer(3)
    second.stop.click()
    second.wait_done()
    for each in (second, third):
        assert each.errors == []
        each.context.close()


@pytest.mark.browser
def test_dying_engine_shows_an_error(browser: Browser) -> None:
    with serving() as chat:
        page = ChatPage(browser, chat.url)
        chat.set(delay=0.02)
        page.ask(QUESTION)
        page.wait_longer(5)
        chat.die()
        page.failures.wait_for()
        page.send.wait_for()
        page.ask("And now?")
        page.failures.nth(1).wait_for()
        for text in page.failures.all_inner_texts():
            assert "must be started again" in text
        page.send.wait_for()
        page.context.close()


@pytest.mark.browser
def test_copy_gives_the_answer_alone(chat: Served, browser: Browser) -> None:
    page = ChatPage(browser, chat.url, permissions=["clipboard-read", "clipboard-write"])
    chat.set(says="<think>Hm.</think>It's **bold**.\n\nTwo 's message: x")
    page.ask("Show me.")
    page.wait_done()
    for expected in ("It's **bold**.\n\nTwo 's message: x", "Show me."):
        page.page.evaluate("navigator.clipboard.writeText('')")
        place = "left" if expected != "Show me." else "right"
        page.page.locator(f"#chat .message-buttons-{place}").get_by_label("Copy message").click()
        page.page.wait_for_function("navigator.clipboard.readText()")
        copied = page.page.evaluate("navigator.clipboard.readText()")
        assert copied.strip() == expected
    page.context.close()


@pytest.mark.browser
def test_settings_reach_the_model_and_errors_the_user(chat: Served, page: ChatPage) -> None:
    page.page.locator("#settings .toggle-button").click()
    page.page.locator("#setting-max_new_tokens input").fill("7")
    page.page.locator("#setting-seed input").fill("3")
    page.page.locator("#setting-system textarea").fill("Be kind.")
    page.page.locator("#setting-strategy input").click()
    page.page.get_by_role("option", name="Greedy").click()
    page.page.locator("#setting-temperature").wait_for(state="detached")
    page.ask(QUESTION)
    page.wait_done()
    prompt, params = chat.asked[-1]
    assert prompt[0] == {"role": "system", "content": "Be kind."}
    assert params.pop("client") == "127.0.0.1"
    assert params == {"do_sample": False, "max_new_tokens": 7, "seed": 3, "top_logprobs": 5}
    assert "7 tokens" in page.folded.last.inner_text()
    assert page.folded.last.inner_text().endswith(" · length")

    page.page.locator("#setting-max_new_tokens input").fill("100000")
    page.button("Retry").click()
    page.page.get_by_text(re.compile("cannot be done.*max_new_tokens")).wait_for()
    assert page.failures.locator("code").first.inner_text() == "max_new_tokens"
    page.send.wait_for()
    page.page.reload()
    page.ready()
    page.page.locator("#settings .toggle-button").click()
    assert page.page.locator("#setting-max_new_tokens input").input_value() == "100000"
    page.page.locator("#reset").click()
    page.page.locator("#setting-temperature").wait_for()
    assert page.page.locator("#setting-max_new_tokens input").input_value() == ""
    page.ask("fox " * 3000)
    page.page.get_by_text(re.compile("too long for the model: .*context holds 1024")).wait_for()
    page.send.wait_for()


@pytest.mark.browser
def test_markdown_code_mathematics_and_reasoning(chat: Served, page: ChatPage) -> None:
    text = (
        "<think>Let me *see*.</think>**Bold** costs $5 or $6.\n\n```python\nx = 1\n```\n"
        "\nInline \\(x^2\\), and\n\n$$\\int_0^1 x\\,dx$$\n\n<script>window.broken = 1</script>"
    )
    chat.set(says=text)
    page.ask("Show me.")
    page.wait_done()
    page.page.get_by_text("costs $5 or $6").wait_for()
    assert page.page.locator("#chat .bot strong").inner_text() == "Bold"
    assert page.page.locator("#chat .bot pre code").inner_text().strip() == "x = 1"
    page.page.locator("#chat .bot .katex").nth(1).wait_for()
    assert page.page.evaluate("window.broken") is None
    thought = page.page.get_by_text("Let me see.")
    thought.wait_for(state="hidden")  # it folds when the answer has ended
    page.page.get_by_text("Thoughts").click()
    thought.wait_for()


@pytest.mark.browser
def test_probabilities(chat: Served, page: ChatPage) -> None:
    page.ask(QUESTION)
    text, written = page.wait_done(), page.written
    page.tab("Probabilities")
    tokens = page.page.locator("#heat .token")
    tokens.first.wait_for()
    joined = "".join(tokens.all_text_contents()).replace("↵", "\n")
    assert text[:40] in joined
    assert written in joined
    tokens.nth(3).hover()
    card = page.page.locator("#heat .card.shown")
    card.wait_for()
    assert card.locator(".row").count() == 5 or card.locator(".row.chosen").count() == 1
    assert "%" in card.inner_text()


@pytest.mark.browser
def test_phone_width_and_dark(browser: Browser, chat: Served) -> None:
    page = ChatPage(browser, chat.url, viewport=PHONE, color_scheme="dark", has_touch=True)
    is_dark = "document.body.classList.contains('dark')"
    assert page.page.evaluate(is_dark)
    page.page.locator("#conversations .toggle-button").tap()
    page.page.locator("#theme").tap()
    assert not page.page.evaluate(is_dark)
    page.page.reload()
    page.ready()
    page.page.wait_for_function("!document.body.classList.contains('dark')")
    page.box.tap()  # nothing lies over it
    page.ask(QUESTION)
    page.wait_done()
    page.stop.wait_for(state="detached")
    page.page.get_by_role("tab", name="Probabilities").tap()
    page.page.locator("#heat .token").nth(1).tap()  # of the first line: not broken in two
    page.page.locator("#heat .card.shown").wait_for()
    page.page.get_by_role("tab", name="Chat").tap()
    assert page.page.evaluate(TOO_SMALL) == []
    page.page.locator("#settings .toggle-button").tap()
    page.page.locator("#setting-temperature").wait_for()
    assert page.page.evaluate(TOO_SMALL) == []
    page.page.locator("#settings .toggle-button").tap()
    page.page.locator("#conversations .toggle-button").tap()
    assert page.page.evaluate(TOO_SMALL) == []
    page.page.locator("#conversations .toggle-button").tap()
    width = page.page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"]
    box = page.box.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= PHONE["height"]
    assert box["width"] > PHONE["width"] * 0.6
    page.context.close()


@pytest.mark.browser
def test_an_example_is_a_question(chat: Served, page: ChatPage) -> None:
    chat.set(delay=0.02)
    example = page.page.get_by_role("button", name=re.compile("Select example 1"))
    places = """() => ["#chat .example", "#box"].map((one) => {
      const { left, right } = document.querySelector(one).getBoundingClientRect();
      return [Math.round(left), Math.round(right)];
    })"""
    for width in (375, 900, 1280):
        page.page.set_viewport_size({"width": width, "height": 780})
        page.until(lambda: len({tuple(one) for one in page.page.evaluate(places)}) == 1)
    example.click()
    page.wait_longer(3)
    page.stop.click()
    assert chat.wait_idle(2) < 2
    page.wait_done()
    assert page.questions.all_inner_texts() == [QUESTION]


@pytest.mark.browser
def test_stop_ends_the_answer_to_an_option_too(chat: Served, page: ChatPage) -> None:
    chat.set(max_new_tokens=5)
    chat.offer("And then?")
    page.ask(QUESTION)
    page.wait_done()
    chat.set(delay=0.02)
    page.page.get_by_role("button", name="And then?").click()
    page.page.wait_for_function("document.querySelectorAll('#chat .user.message').length == 2")
    page.wait_longer(len(page.wait_longer(3)))
    page.stop.click()
    assert chat.wait_idle(2) < 2
    page.wait_done()
    assert page.questions.all_inner_texts() == [QUESTION, "And then?"]
    assert "stopped" in page.folded.last.inner_text()


@pytest.mark.browser
def test_the_first_click_works_before_the_page_has_drawn_what_is_kept(
    chat: Served, browser: Browser
) -> None:
    page = ChatPage(browser, chat.url)
    page.page.locator("#settings .toggle-button").click()
    page.page.locator("#setting-seed input").fill("3")
    page.ask("Who are you?")
    page.wait_done()
    page.page.locator("#new-chat").click()
    page.page.locator("#chat .placeholder").wait_for()

    def late(route: Route) -> None:
        time.sleep(1.5)
        route.continue_()

    page.page.route("**/gradio_api/**", late)
    page.page.reload()
    page.page.get_by_role("button", name=re.compile("Select example 1")).click()
    page.wait_done()
    assert page.failures.count() == 0
    assert chat.asked[-1][0][-1]["content"] == QUESTION
    assert chat.asked[-1][1]["seed"] == 3  # chosen before the reload
    assert "max_new_tokens" not in chat.asked[-1][1]
    assert page.errors == []
    titles = page.page.locator("#picker label").all_inner_texts()
    assert [title.strip() for title in titles] == [QUESTION, "Who are you?"]
    page.context.close()


@pytest.mark.browser
def test_a_wrong_setting_stands_in_the_chat_by_name(chat: Served, page: ChatPage) -> None:
    page.ask("Who are you?")
    first = page.wait_done()
    page.page.locator("#settings .toggle-button").click()
    page.page.locator("#setting-max_new_tokens input").fill("0")
    page.ask(QUESTION)
    page.failures.wait_for()
    assert "max_new_tokens is 0: must be a whole number of at least 1" in page.failures.inner_text()
    assert page.questions.all_inner_texts() == ["Who are you?", QUESTION]
    assert page.answers.first.inner_text() == first
    page.page.locator("#setting-max_new_tokens input").fill("7")
    page.button("Retry").click()
    page.failures.wait_for(state="detached")
    page.wait_done()
    assert "7 tokens" in page.folded.last.inner_text()
