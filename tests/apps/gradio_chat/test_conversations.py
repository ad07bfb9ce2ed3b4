"""Conversations: what the model is asked, what is kept, and what survives a damaged store."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.gradio_chat.conversations import (
    KEPT_BYTES,
    KEPT_CHATS,
    ChatHistory,
    Conversation,
    Turn,
)


def _talk() -> Conversation:
    return Conversation(
        [Turn("user", "One?"), Turn("assistant", "1"), Turn("user", "Two?"), Turn("assistant", "2")]
    )


def test_the_prompt_is_the_turns_after_the_system_prompt() -> None:
    conversation = _talk()
    conversation.ask("Three?")
    assert [m["content"] for m in conversation.prompt("Count.")] == [
        "Count.", "One?", "1", "Two?", "2", "Three?",
    ]  # fmt: skip
    assert conversation.prompt(" ")[0]["role"] == "user"


def test_reasoning_stays_out_of_the_prompt() -> None:
    conversation = Conversation([Turn("user", "a"), Turn("assistant", "<think>hm</think>b")])
    assert conversation.prompt()[1] == {"role": "assistant", "content": "b"}


def test_a_question_without_an_answer_is_not_asked_again() -> None:
    turns = [Turn("user", "a"), Turn("assistant", "", error="no"), Turn("user", "b")]
    assert Conversation(turns).prompt() == [{"role": "user", "content": "b"}]


def test_take_back_returns_the_question_of_a_turn() -> None:
    assert _talk().take_back() == "Two?"
    conversation = _talk()
    assert conversation.take_back(1) == "One?"
    assert conversation.turns == []
    assert Conversation().take_back() == ""


def test_reword_drops_the_later_turns() -> None:
    conversation = _talk()
    conversation.reword(2, "Three?")
    assert [turn.text for turn in conversation.turns] == ["One?", "1", "Three?"]
    with pytest.raises(IndexError):
        conversation.reword(1, "no question")


def test_the_title_is_one_short_line() -> None:
    conversation = Conversation()
    assert conversation.title == "New chat"
    conversation.ask("Tell me\n a very long story about the foxes of the northern woods")
    assert conversation.title.startswith("Tell me a very long")
    assert len(conversation.title) <= 42


def test_begin_does_not_pile_up_empty_chats() -> None:
    history = ChatHistory.new()
    first = history.current
    assert history.begin() is first
    first.ask("Hello")
    second = history.begin()
    assert second is not first
    assert history.conversations == [second, first]


def test_removing_shows_the_next_one_and_always_leaves_one() -> None:
    history = ChatHistory.new()
    first = history.current
    first.ask("Hello")
    history.remove(history.begin())
    assert history.current is first
    history.remove(first)
    assert history.current.turns == []
    assert history.conversations == [history.current]


def test_removed_conversation_is_restored_at_its_position() -> None:
    history = ChatHistory.new()
    for name in ("a", "b", "c"):
        history.begin().ask(name)
    middle = history.show(history.conversations[1].key)
    order = list(history.conversations)
    history.remove(middle)
    history.remove(history.begin())  # nothing was said there
    history.bring_back()
    assert history.current is middle and history.conversations == order
    history.bring_back()
    assert history.conversations == order


def test_trim_forgets_the_oldest_but_never_the_one_shown() -> None:
    history = ChatHistory.new()
    for name in ("a", "b", "c"):
        history.begin().ask(name * 1000)
    history.show(history.conversations[-1].key)
    dropped = history.trim(3500)
    assert dropped == ["b" * 41 + "…"]
    assert history.current.turns[0].text.startswith("a")
    assert history.trim(1) != []
    assert history.conversations == [history.current]


def test_history_survives_dump_and_restore() -> None:
    history = ChatHistory([_talk(), Conversation([Turn("user", "x")])], Conversation())
    history.current = history.conversations[1]
    history.settings = {"temperature": 0.3}
    history.conversations[0].turns[1].figures = {"tokens": "1 token"}
    history.conversations[0].turns[3].error = "broken"
    assert ChatHistory.restore(json.loads(json.dumps(history.dump()))) == history
    assert ChatHistory.load(history.save()) == history


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["format", "conversations", "current", "settings", "turns", "role", "text"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_store_keeps_the_user_out(saved: Any) -> None:
    wrapped = {"format": 1, "conversations": [saved], "settings": saved, "current": saved}
    for each in (saved, wrapped, json.dumps(saved), json.dumps(wrapped), str(saved)):
        history = ChatHistory.load(each)
        assert history.current in history.conversations
        assert isinstance(history.settings, dict)


def test_thousands_of_chats_are_trimmed_at_once() -> None:
    history = ChatHistory.new()
    history.conversations += [Conversation([Turn("user", "x")]) for _ in range(20_000)]
    assert len(history.trim()) == 20_001 - KEPT_CHATS
    assert len(history.conversations) == KEPT_CHATS


@pytest.mark.parametrize("letter", ['"', "\n", "\\", "é", "😀", "\x01", "x"])
def test_what_is_kept_of_a_chat_has_an_end_whatever_it_holds(letter: str) -> None:
    history = ChatHistory.new()
    history.current.turns = [Turn("user", letter * 100_000) for _ in range(40)]
    history.trim()
    assert len(json.dumps(history.save(), ensure_ascii=False).encode()) <= KEPT_BYTES
    back = ChatHistory.load(history.save()).current
    assert back.turns == history.current.turns[-len(back.turns) :] != []


def test_a_store_of_too_many_values_is_not_read() -> None:
    assert ChatHistory.load("[" + "[]," * 200_000 + "0]").current.turns == []
    chat = Conversation([Turn("user", "x")])
    half = ChatHistory([chat], chat).save().replace('"x"', '"\\ud800"')
    assert ChatHistory.load(half).current.turns == []


def test_an_answer_without_an_end_is_marked_as_cut_off() -> None:
    history = ChatHistory.new()
    history.current.ask("Who?")
    history.current.turns.append(Turn("assistant", "I am"))
    loaded = ChatHistory.load(history.save()).current.turns
    assert loaded[1].figures == {"ended by": "cut off: the page was left"}
    assert loaded[0].figures == {}
