"""A conversation on the screen, and the way back from a click to a turn."""

from __future__ import annotations

from asyncgen_apps.gradio_chat.conversations import Conversation, Turn
from asyncgen_apps.gradio_chat.messages import as_messages, turn_number

FIGURES = {"tokens": "9 tokens", "speed": "42 tokens/s", "ended by": "complete", "in all": "1.0 s"}


def test_an_answer_shows_reasoning_text_and_figures() -> None:
    turn = Turn("assistant", "<think>Hm.</think>Two.", FIGURES)
    question, thought, text, figures = as_messages(Conversation([Turn("user", "1+1?"), turn]))
    assert question == {"role": "user", "content": "1+1?"}
    assert thought["content"] == "Hm."
    assert thought["metadata"] == {"title": "Thoughts", "status": "done"}
    assert text == {"role": "assistant", "content": "Two."}
    assert figures["metadata"]["title"] == "9 tokens · 42 tokens/s · complete"
    assert figures["content"] == "in all 1.0 s"


def test_pending_answer_shows_its_status() -> None:
    conversation = Conversation([Turn("user", "?"), Turn("assistant", "")])
    waiting = as_messages(conversation, "In the queue: 3 ahead")[1]
    assert waiting["metadata"] == {"title": "In the queue: 3 ahead", "status": "pending"}
    conversation.turns[1].text = "<think>Hm"
    thinking = as_messages(conversation, "x")[1]
    assert thinking["metadata"] == {"title": "Thinking", "status": "pending"}
    conversation.turns[1].text = "Two"
    assert as_messages(conversation, "x")[1] == {"role": "assistant", "content": "Two"}


def test_an_error_is_a_message_and_keeps_the_text() -> None:
    turn = Turn("assistant", "Tw", error="`top_p` is <b>3</b>")
    text, error = as_messages(Conversation([turn]))
    assert text["content"] == "Tw"
    framed = '<div class="failure">\n\n`top_p` is &lt;b&gt;3&lt;/b&gt;\n\n</div>'
    assert error["content"] == framed


def test_an_empty_answer_is_seen() -> None:
    assert len(as_messages(Conversation([Turn("assistant", "")]))) == 1


def test_every_message_leads_back_to_its_turn() -> None:
    turns = [
        Turn("user", "a"),
        Turn("assistant", "<think>b</think>c", FIGURES),
        Turn("user", "d"),
        Turn("assistant", "", error="e"),
        Turn("user", "f"),
    ]
    conversation = Conversation(turns)
    shown = as_messages(conversation)
    numbers = [turn_number(conversation, index) for index in range(len(shown))]
    assert numbers == [0, 1, 1, 1, 2, 3, 4]
    assert turn_number(conversation, 99) == 4
    assert turn_number(Conversation(), 0) == 0
