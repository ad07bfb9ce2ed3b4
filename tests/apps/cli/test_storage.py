from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from asyncgen_apps.cli.session import ConversationError, Session
from asyncgen_apps.cli.storage import read_conversation, write_conversation
from tests.apps.cli.doubles import completion

if TYPE_CHECKING:
    from pathlib import Path


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


def test_what_cannot_be_written_or_read_is_said_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(ConversationError, match="cannot write"):
        write_conversation(str(tmp_path / "no" / "chat.json"), {})
    with pytest.raises(ConversationError, match="cannot read"):
        read_conversation(str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    with pytest.raises(ConversationError, match="is not JSON"):
        read_conversation(str(tmp_path / "bad.json"))
