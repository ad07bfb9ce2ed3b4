"""Sessions: one for each page, gone with it, and never without what the browser kept."""

from __future__ import annotations

from asyncgen_apps.gradio_chat.conversations import ChatHistory, Turn
from asyncgen_apps.gradio_chat.sessions import KEPT_ANSWERS, Session, Sessions
from tests.apps.gradio_chat.doubles import ScriptedStream, logprob


def test_a_page_has_one_session_and_two_have_two() -> None:
    sessions = Sessions()
    first = sessions.get("a", None)
    assert sessions.get("a", None) is first
    assert sessions.get("b", None) is not first


def test_a_closed_page_stops_its_answers_and_comes_back_with_its_chats() -> None:
    sessions = Sessions()
    session = sessions.get("a", None)
    session.history.current.ask("Hello")
    saved, stream = session.history.dump(), ScriptedStream()
    session.start(session.history.current, stream)
    sessions.close("a")
    assert stream.is_cancelled
    assert len(sessions) == 0
    assert sessions.get("a", saved).history.current.turns[0].text == "Hello"
    sessions.close("never there")


def test_pages_of_one_browser_share_what_is_kept() -> None:
    sessions = Sessions()
    first = sessions.get("a", None)
    first.history.current.ask("Hello")
    saved, stream = first.history.dump(), ScriptedStream()
    second = sessions.get("b", saved)
    first.start(first.history.current, stream)
    assert second.history.conversations is first.history.conversations
    assert second.is_elsewhere(second.history.current)
    assert not first.is_elsewhere(first.history.current)
    second.end(second.history.current)  # another page's answer is not ended here
    second.close()
    assert first.is_running(first.history.current)
    assert not stream.is_cancelled
    second.stop(second.history.current)
    assert stream.is_cancelled
    assert sessions.get("c", {**saved, "key": "other"}).history.conversations[0].turns


def test_stop_is_for_one_conversation() -> None:
    session = Session(ChatHistory.new())
    first = session.history.current
    first.ask("Hello")
    second = session.history.begin()
    streams = ScriptedStream(), ScriptedStream()
    session.start(first, streams[0])
    session.start(second, streams[1])
    session.stop(second)
    assert [stream.is_cancelled for stream in streams] == [False, True]
    session.end(second)
    session.end(second)
    session.stop(second)
    assert session.is_running(first)
    assert not session.is_running(second)


def test_probabilities_are_kept_for_the_latest_answers() -> None:
    session = Session(ChatHistory.new())
    answers = [Turn("assistant", f"Answer {n}. " * 20) for n in range(KEPT_ANSWERS + 1)]
    session.history.current.turns = list(answers)
    for turn in answers:
        session.record(turn.key, [logprob("x")])
    session.record("nothing", [])
    recorded = session.recorded(session.history.current)
    assert [key for _, key in recorded] == [turn.key for turn in answers[1:]]
    assert recorded[0][0].startswith("2. Answer 1. Answer 1.")
    assert len(recorded[0][0]) < 70
