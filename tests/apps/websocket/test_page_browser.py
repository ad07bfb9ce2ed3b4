"""The chat page in a headless Chromium, over a real server and a wire that breaks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.apps.websocket.relay import relaying

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from tests.apps.websocket.relay import Relay
    from tests.apps.websocket.web_page import WebPage
    from tests.apps.websocket.web_serving import Model

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

QUESTION = "Tell me a story about a fox."
PHONE = {"width": 375, "height": 720}


def test_turns_are_one_conversation(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    page = visit(wire())
    page.ready()
    page.configure(seed=1, max_new_tokens=40)
    page.ask("Who are you?")
    first = page.wait_done()
    page.ask(QUESTION)
    second = page.wait_done()
    messages = [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": QUESTION},
    ]
    assert model.answer(messages, seed=1, max_new_tokens=40).text == second
    page.page.get_by_role("button", name="Try again").click()
    assert page.wait_done() == second
    assert page.answers.count() == 2

    page.page.get_by_role("button", name="New chat").click()
    assert page.answers.count() == 0
    page.page.get_by_role("button", name="Tell me a story about a fox.").click()
    alone = [{"role": "user", "content": QUESTION}]
    assert page.wait_done() == model.answer(alone, seed=1, max_new_tokens=40).text

    page.configure(system="You are a fox.")
    page.page.get_by_role("button", name="Try again").click()
    told = [{"role": "system", "content": "You are a fox."}, *alone]
    assert page.wait_done() == model.answer(told, seed=1, max_new_tokens=40).text


def test_reload_keeps_the_conversation(
    wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    page = visit(wire())
    page.ready()
    page.configure(temperature=0.5, max_new_tokens=20)
    page.ask("Who are you?")
    text, figures = page.wait_done(), page.figures
    page.page.reload()
    page.ready()
    assert page.kept()["turns"][-1]["content"] == text
    assert page.figures == figures
    page.page.get_by_role("button", name="Settings").click()
    assert page.page.get_by_label("Temperature").input_value() == "0.5"
    page.page.keyboard.press("Escape")
    assert page.box.evaluate("(box) => box === document.activeElement")


def test_stop_before_the_first_token_and_new_chat_in_mid_stream(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    page = visit(wire())
    page.ready()
    model.llm.may_go_on.clear()
    page.ask(QUESTION)
    page.page.get_by_text("reading the prompt").wait_for()
    page.wait(lambda: str(model.busy), lambda busy: busy == "1")
    page.page.keyboard.press("Escape")
    model.llm.may_go_on.set()
    page.wait_done()
    assert page.figures.endswith("stopped")
    model.wait_idle()

    model.llm.delay = 0.02
    page.page.get_by_role("button", name="Try again").click()
    page.wait_longer(10)
    page.page.get_by_role("button", name="New chat").click()
    model.wait_idle()
    assert page.page.get_by_text("What shall we write?").is_visible()
    assert page.kept()["turns"] == []


def test_a_wire_that_is_cut_again_and_again(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    question = [{"role": "user", "content": QUESTION}]
    wanted = model.answer(question, seed=3, max_new_tokens=500, min_new_tokens=500).text
    model.llm.delay, model.llm.asked = 0.01, 0
    relay = wire()
    page = visit(relay)
    page.ready()
    page.configure(seed=3, max_new_tokens=500)
    page.ask(QUESTION)
    length, pages = 0, relay.connections
    for cuts in range(6):
        page.wait(lambda: str(relay.connections), str(pages + cuts).__eq__)
        length = len(page.wait_longer(length + 5))
        relay.cut()
    assert page.wait_done() == wanted
    assert relay.connections == pages + 6
    assert model.llm.asked == 1


def test_an_answer_outlives_its_servers(
    model: Model, stack: ExitStack, visit: Callable[..., WebPage]
) -> None:
    question = [{"role": "user", "content": QUESTION}]
    wanted = model.answer(question, seed=3, max_new_tokens=300, min_new_tokens=300).text
    model.llm.delay, model.llm.asked = 0.01, 0
    secret = "known to all of them"
    ports = [stack.enter_context(model.serving(resume_secret=secret)) for _ in range(4)]
    relay = stack.enter_context(relaying(ports[0]))
    page = visit(relay)
    page.ready()
    page.configure(seed=3, max_new_tokens=300)
    page.ask(QUESTION)
    length = 0
    for port in ports[1:]:
        length = len(page.wait_longer(length + 5))
        relay.lead_to(port)
    assert page.wait_done() == wanted
    assert 1 < model.llm.asked <= 4


def test_a_wire_that_falls_silent_is_noticed_by_the_heartbeat(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    model.llm.delay = 0.02
    relay = wire(heartbeat_seconds=0.5)
    page = visit(relay)
    page.ready()
    page.ask(QUESTION)
    page.wait_longer(5)
    relay.hold()
    page.page.get_by_text("waiting for the connection").wait_for()
    relay.cut()
    relay.go_on()
    page.ready()
    page.wait_longer(len(page.answers.last.inner_text()) + 10)
    page.stop.click()
    page.wait_done()


def test_stop_without_a_connection_reaches_the_server_later(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    model.llm.delay = 0.05
    relay = wire()
    page = visit(relay)
    page.ready()
    page.ask(QUESTION)
    page.wait_longer(5)
    relay.close()
    page.state("waiting")
    page.stop.click()
    page.wait_done()
    assert page.figures.endswith("stopped")
    assert model.busy == 1
    page.banner.wait_for()
    relay.open()
    page.ready()
    model.wait_idle()
    assert page.banner.is_hidden()
    assert page.kept()["orphans"] == []


def test_lost_connection_is_shown_on_the_page(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    model.llm.delay = 0.02
    relay = wire(grace_seconds=0)
    page = visit(relay)
    page.ready()
    page.ask(QUESTION)
    text = page.wait_longer(5)
    relay.cut()
    page.problem.wait_for()
    assert "The rest of this answer is lost" in page.problem.inner_text()
    assert page.answers.last.inner_text().startswith(text.rstrip())
    model.wait_idle()


def test_another_server_after_the_first_was_ended(
    model: Model, stack: ExitStack, visit: Callable[..., WebPage]
) -> None:
    with model.serving(drain_seconds=0) as port:
        relay = stack.enter_context(relaying(port))
        page = visit(relay)
        page.ready()
        model.llm.delay = 0.02
        page.ask(QUESTION)
        page.wait_longer(5)
    page.wait_done()
    assert page.figures.endswith("closed")
    page.state("waiting")
    assert "shutting down" in page.banner.inner_text()
    model.llm.delay = 0
    with model.serving(port=port):
        page.ready()
        page.configure(max_new_tokens=5)
        page.ask("Who are you?")
        page.wait_done()
        assert page.figures.startswith("5 tokens")


def test_the_token_is_asked_for(wire: Callable[..., Relay], visit: Callable[..., WebPage]) -> None:
    page = visit(wire(tokens=("a-secret",)))
    page.state("locked")
    dialog = page.page.get_by_role("dialog")
    assert "asks for an access token" in dialog.inner_text()
    assert page.page.get_by_label("Access token").evaluate("(it) => it === document.activeElement")
    page.configure(token="a-guess")
    page.page.get_by_text("does not accept this access token").first.wait_for()
    page.configure(token="a-secret", max_new_tokens=5)
    page.ready()
    page.ask(QUESTION)
    page.wait_done()
    page.page.reload()
    page.ready()
    assert page.banner.is_hidden()


def test_errors_are_readable_and_the_next_try_works(
    wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    page = visit(wire(max_message_bytes=3000))
    page.ready()
    page.configure(temperature="0.5", max_new_tokens=5000)
    page.ask(QUESTION)
    page.problem.wait_for()
    assert "max_new_tokens" in page.problem.inner_text()
    page.configure(max_new_tokens=5)
    page.page.get_by_role("button", name="Try again").click()
    page.wait_done()
    assert page.figures.startswith("5 tokens")
    assert page.problem.count() == 0
    page.ask("x" * 3000)
    page.problem.wait_for()
    assert "longer than the 3000 bytes" in page.problem.inner_text()


def test_at_a_temperature_of_0_the_most_probable_token_wins(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    wanted = model.answer(messages, do_sample=False, max_new_tokens=12)
    page = visit(wire())
    page.ready()
    page.configure(temperature=0, top_p="0.9", seed=3, max_new_tokens=12)
    page.ask(QUESTION)
    assert page.wait_done() == wanted.text


@pytest.mark.parametrize("address", ["http://[", "ws://127.0.0.1:99999/", "ftp://127.0.0.1/"])
def test_invalid_address_shows_an_error(
    address: str, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    page = visit(wire(), f"/?url={address}")
    page.state("off")
    assert f"No address of a server: {address}" in page.banner.inner_text()
    page.configure(token="secret")
    page.state("off")
    page.ask(QUESTION)
    assert page.sockets == []


def test_another_server_is_asked_about_first(
    wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    own, other = wire(), wire(origins=("*",))
    page = visit(own, f"/?url=ws://127.0.0.1:{other.port}/v1/stream")
    page.state("off")
    assert page.sockets == []
    page.page.get_by_role("button", name="Connect").click()
    page.ready()
    assert page.sockets == [f"ws://127.0.0.1:{other.port}/v1/stream"]
    same = visit(own, "/?url=/v1/stream")
    same.ready()
    assert same.sockets == [f"ws://127.0.0.1:{own.port}/v1/stream"]


def test_texts_never_become_markup(
    wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    page = visit(wire())
    page.ready()
    page.configure(max_new_tokens=3)
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    page.ask(evil)
    page.wait_done()
    assert page.page.locator("#turns .user").inner_text() == evil
    draw = "(element, text) => draw(element, text)"
    for around in ("{}", "**{}**", "`{}`", "# {}", "- {}", "```\n{}\n```", "1. *{}*", "|{}|\n|-|"):
        page.answers.last.evaluate(draw, around.format(evil))
        assert page.answers.last.inner_text().strip() in (evil, f"**{evil}**")
    assert page.page.locator("#turns :is(img, script)").count() == 0


def test_on_a_phone(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    model.llm.delay = 0.01
    page = visit(wire(), viewport=PHONE, has_touch=True, is_mobile=True)
    page.ready()
    page.box.fill("Word" * 60)
    page.box.press("Enter")  # a new line, as the key of the screen says
    assert page.box.input_value().endswith("Word\n")
    assert page.box.get_attribute("enterkeyhint") == "enter"
    page.send.tap()
    page.wait_longer(60)
    assert page.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for one in (page.box, page.stop):
        found = one.bounding_box()
        assert found is not None
        assert found["y"] + found["height"] <= PHONE["height"]
    for name in ("New chat", "Settings", "Stop"):
        found = page.page.get_by_role("button", name=name).bounding_box()
        assert found is not None
        assert min(found["width"], found["height"]) >= 40
    page.stop.tap()
    page.wait_done()


def test_with_the_keyboard_alone(wire: Callable[..., Relay], visit: Callable[..., WebPage]) -> None:
    page = visit(wire())
    page.ready()
    keyboard = page.page.keyboard
    focused = "document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"
    assert page.page.evaluate(focused) == "question"
    keyboard.type("One")
    keyboard.press("Shift+Enter")
    keyboard.type("two")
    keyboard.press("Enter")
    page.wait_done()
    assert page.kept()["turns"][0]["content"] == "One\ntwo"
    names = []
    for _ in range(5):
        keyboard.press("Shift+Tab")
        names.append(page.page.evaluate(focused))
    assert {"Conversation", "Settings"} <= set(names)
    page.box.focus()
    while page.page.evaluate(focused) != "Settings":
        keyboard.press("Shift+Tab")
    keyboard.press("Enter")
    page.page.get_by_role("dialog", name="Settings").wait_for()
    keyboard.press("Escape")
    page.page.wait_for_function(f"({focused}) === 'question'")


def test_live_region_announces_the_answer(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    page = visit(wire())
    page.ready()
    page.configure(max_new_tokens=30)
    page.ask(QUESTION)
    text = page.wait_done()
    heard = page.page.locator("[aria-live=polite]").inner_text()
    assert heard.startswith("Answering.")
    assert " ".join(text.split()) in " ".join(heard.split())
    assert re.search(r"End of the answer: 30 tokens .* length\.$", heard)
    tree = page.page.locator("body").aria_snapshot()
    for part in (
        'heading "asyncgen demo" [level=1]',
        "status: Connected",
        'main "Conversation"',
        'heading "You" [level=2]',
        'heading "Answer" [level=2]',
        'textbox "Message"',
        'button "Send"',
    ):
        assert part in tree


def test_pieces_that_come_twice_or_not_at_all(
    model: Model, wire: Callable[..., Relay], visit: Callable[..., WebPage]
) -> None:
    model.llm.may_go_on.clear()
    relay = wire()
    page = visit(relay)
    page.ready()
    page.ask(QUESTION)
    page.wait(lambda: str(page.page.evaluate("chat.live.token")), lambda token: token != "None")
    say = "([seq, text]) => receive({ type: 'delta', id: chat.live.id, seq, text, index: 0 })"
    for seq, text in ((1, "one "), (1, "one "), (2, "two")):
        page.page.evaluate(say, [seq, text])
    assert page.page.evaluate("answer().content") == "one two"
    connections = relay.connections
    page.page.evaluate(say, [4, "four"])
    page.problem.wait_for()
    assert relay.connections == connections + 1
    assert "the server has less of it than this page" in page.problem.inner_text()
    assert page.answers.last.inner_text() == "one two"
    page.page.get_by_role("button", name="New chat").click()
    model.llm.may_go_on.set()
    model.llm.delay = 0.0
