from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncgen_apps.cli.session import ConversationError, Session
from asyncgen_apps.cli.storage import read_conversation, write_conversation
from tests.apps.cli.doubles import completion
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path


texts = st.text(max_size=20)


def test_a_question_leaves_no_trace_until_it_is_answered() -> None:
    session = Session("demo", system="Be brief.")
    asked = session.prompt("Why?")
    assert asked == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
    ]
    assert session.messages == []
    session.keep("Why?", completion("Because."))
    assert session.prompt("Really?")[-3:] == [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "Because."},
        {"role": "user", "content": "Really?"},
    ]


def test_clearing_keeps_system_message_settings_and_figures() -> None:
    session = Session("demo", system="Be brief.")
    session.settings.set("seed", 1)
    session.keep("a", completion("b"))
    session.clear()
    assert session.transcript() == [{"role": "system", "content": "Be brief."}]
    assert session.settings.params() == {"seed": 1}
    assert session.totals.answers == 1


def test_totals_add_up() -> None:
    session = Session("demo")
    for _ in range(3):
        session.keep("a", completion("b", tokens=5))
    totals = session.totals
    assert (totals.answers, totals.prompt_tokens, totals.completion_tokens) == (3, 21, 15)
    assert totals.seconds == 3.0


@given(st.none() | texts, st.lists(st.tuples(texts, texts), max_size=4), st.integers(0, 99))
def test_a_saved_conversation_comes_back(
    system: str | None, turns: list[tuple[str, str]], seed: int
) -> None:
    session = Session("demo", system=system)
    session.settings.set("seed", seed)
    session.settings.set("stop", ["\n"])
    for question, answer in turns:
        session.keep(question, completion(answer))
    other = Session("another", system="old")
    other.restore(json.loads(json.dumps(session.dump())))
    assert other.transcript() == session.transcript()
    assert other.system == system
    assert other.settings == session.settings
    assert other.model == "another"


GOOD: dict[str, Any] = {"format": "asyncgen.chat", "version": 1, "messages": [], "settings": {}}


@for_each(
    ("saved", "says"),
    [
        ([], "not a saved conversation"),
        ({"messages": []}, "not a saved conversation"),
        ({**GOOD, "version": 2}, "version 2"),
        ({**GOOD, "messages": {}}, "must be a list"),
        ({**GOOD, "messages": ["hi"]}, "message 1"),
        ({**GOOD, "messages": [{"role": "king", "content": "x"}]}, '"role" must be one of'),
        ({**GOOD, "messages": [{"role": "user", "content": 3}]}, '"content" must be a string'),
        ({**GOOD, "settings": []}, '"settings" must be an object'),
        ({**GOOD, "settings": {"temprature": 1}}, "did you mean `temperature`"),
        ({**GOOD, "settings": {"top_p": 3}}, "from 0 to 1"),
    ],
)
def test_a_bad_file_is_refused_and_changes_nothing(saved: object, says: str) -> None:
    session = Session("demo", system="old")
    session.keep("a", completion("b"))
    before = session.dump()
    with pytest.raises(ConversationError, match=says):
        session.restore(saved)
    assert session.dump() == before


def test_a_conversation_is_written_and_read(tmp_path: Path) -> None:
    session = Session("demo")
    session.keep("Größe?", completion("ä 🦊"))
    file = write_conversation(str(tmp_path / "chat.json"), session.dump())
    assert read_conversation(str(file)) == session.dump()
    assert "🦊" in file.read_text("utf-8")
    assert list(tmp_path.iterdir()) == [file]


def test_an_older_conversation_is_replaced_but_nothing_else(tmp_path: Path) -> None:
    file, other = tmp_path / "chat.json", tmp_path / "thesis.json"
    write_conversation(str(file), Session("one").dump())
    write_conversation(str(file), Session("two").dump())
    assert json.loads(file.read_text())["model"] == "two"
    other.write_text("my life's work")
    with pytest.raises(ConversationError, match="holds something else"):
        write_conversation(str(other), Session("demo").dump())
    assert other.read_text() == "my life's work"


def test_unreadable_or_unwritable_file_raises_conversation_error(tmp_path: Path) -> None:
    with pytest.raises(ConversationError, match="cannot write"):
        write_conversation(str(tmp_path / "no" / "chat.json"), {})
    with pytest.raises(ConversationError, match="cannot read"):
        read_conversation(str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    with pytest.raises(ConversationError, match="is not JSON"):
        read_conversation(str(tmp_path / "bad.json"))
