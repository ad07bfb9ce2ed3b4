from __future__ import annotations

import pytest

from asyncgen_apps.cli.commands import (
    COMMANDS,
    Load,
    Quit,
    Retry,
    Save,
    ShowError,
    ShowMessage,
    is_command,
    run_command,
    unescape,
)
from asyncgen_apps.cli.session import Session
from asyncgen_apps.cli.settings import SETTINGS
from tests.apps.cli.doubles import completion


@pytest.fixture
def session() -> Session:
    return Session("demo")


def said(session: Session, line: str) -> str:
    effect = run_command(session, line)
    assert isinstance(effect, ShowMessage)
    return "\n".join(["  ".join(row) for row in effect.rows] + [effect.text])


def complained(session: Session, line: str) -> str:
    effect = run_command(session, line)
    assert isinstance(effect, ShowError)
    return effect.text


def test_two_slashes_are_a_text_for_the_model() -> None:
    assert is_command("/help")
    assert not is_command("//usr/bin is a folder")
    assert unescape("//usr/bin") == "/usr/bin"
    assert unescape("plain") == "plain"


def test_help_lists_every_command(session: Session) -> None:
    text = said(session, "/help")
    assert all(f"/{name}" in text for name in COMMANDS)


def test_an_unknown_command_gets_the_near_match(session: Session) -> None:
    assert complained(session, "/hepl") == "unknown command /hepl: did you mean /help?"
    assert "/help lists" in complained(session, "/xyzzy")
    assert "unknown command /" in complained(session, "/")


def test_set_without_arguments_lists_all_settings_with_their_values(session: Session) -> None:
    session.settings.set("seed", 3, "command line")
    session.settings.model = {"top_p": 0.9, "do_sample": True}
    run_command(session, "/set temperature 0.5")
    text = said(session, "/set")
    assert all(setting.name in text for setting in SETTINGS)
    rows = {line.split("  ")[0]: line.split("  ")[1:3] for line in text.splitlines()}
    assert rows["temperature"] == ["0.5", "/set"]
    assert rows["seed"] == ["3", "command line"]
    assert rows["top_p"] == ["0.9", "model"]
    assert rows["top_k"] == ["50", "library"]
    assert rows["min_p"] == ["none", "library"]
    assert rows["sample"] == ["on", "temperature"], "a parameter of sampling asks for it"
    run_command(session, "/set temperature 0")
    assert said(session, "/set sample").startswith("sample = off (temperature): ")
    run_command(session, "/set temperature default")
    assert said(session, "/set sample").startswith("sample = on (model): ")


def test_values_chosen_by_the_server_show_as_unknown(session: Session) -> None:
    assert said(session, "/set top_p").startswith("top_p = ? (server): ")


@pytest.mark.parametrize("line", ["/set top-p 0.5", "/set top_p=0.5", "/SET top_p   0.5"])
def test_set_chooses_a_value(session: Session, line: str) -> None:
    assert said(session, line) == "top_p = 0.5 (/set)"
    assert session.settings.params() == {"top_p": 0.5}


def test_set_keeps_an_equals_sign_inside_a_value(session: Session) -> None:
    run_command(session, "/set stop a=b")
    assert session.settings.params() == {"stop": ["a=b"]}


def test_set_goes_back_to_the_default(session: Session) -> None:
    run_command(session, "/set seed 3")
    session.settings.model = {}
    assert said(session, "/set seed default") == "seed = none (library)"
    assert session.settings.params() == {}


def test_set_with_a_name_alone_explains_it(session: Session) -> None:
    session.settings.model = {"top_p": 0.9}
    assert said(session, "/set top_p").startswith("top_p = 0.9 (model): Sample from ")
    assert said(session, "/set top_p").endswith(" It must be a number from 0 to 1.")


def test_a_bad_value_changes_nothing(session: Session) -> None:
    run_command(session, "/set top_p 0.5")
    assert "must be a number from 0 to 1" in complained(session, "/set top_p 2")
    assert "did you mean `top_p`" in complained(session, "/set topp 0.5")
    assert session.settings.params() == {"top_p": 0.5}


def test_system_is_shown_set_and_removed(session: Session) -> None:
    assert "no system message" in said(session, "/system")
    said(session, "/system You are a fox.")
    assert said(session, "/system") == "You are a fox."
    said(session, "/system none")
    assert session.system is None


def test_clear_forgets_the_turns(session: Session) -> None:
    session.keep("a", completion("b"))
    said(session, "/clear")
    assert session.messages == []


def test_undo_takes_the_last_question_back(session: Session) -> None:
    session.keep("a", completion("b"))
    session.keep("c\nd", completion("e"))
    assert said(session, "/undo") == "taken back: c d"
    assert [message["content"] for message in session.messages] == ["a", "b"]
    said(session, "/undo")
    assert complained(session, "/undo") == "there is no question to take back"


def test_retry_asks_for_another_answer(session: Session) -> None:
    assert complained(session, "/retry") == "there is no question to ask again"
    session.keep("a", completion("b"))
    assert run_command(session, "/retry") == Retry()
    assert len(session.messages) == 2


def test_files_are_asked_for_not_touched(session: Session) -> None:
    assert run_command(session, "/save my chat.json") == Save("my chat.json")
    assert run_command(session, "/load chat.json") == Load("chat.json")
    assert "file name" in complained(session, "/save")
    assert "file name" in complained(session, "/load")


def test_stats_show_the_last_answer_and_the_total(session: Session) -> None:
    assert said(session, "/stats") == "no answer yet"
    session.keep("a", completion("b"))
    session.keep("c", completion("d"))
    last, total = said(session, "/stats").splitlines()
    assert "3 tokens" in last and "42.0 tokens/s" in last
    assert "2 answers" in total and "6 tokens" in total


@pytest.mark.parametrize("line", ["/exit", "/quit", "/EXIT "])
def test_leaving(session: Session, line: str) -> None:
    assert run_command(session, line) == Quit()
