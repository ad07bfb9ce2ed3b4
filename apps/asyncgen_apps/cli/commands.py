"""Slash commands of a chat: they change the session, and return what the caller must do.

A command that needs the terminal or a file returns a request for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from asyncgen_apps.cli.settings import SETTINGS, SettingError, find_setting
from asyncgen_apps.cli.statistics import statistics_line, totals_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen_apps.cli.session import Session
    from asyncgen_apps.cli.settings import Setting, Value


@dataclass(frozen=True, slots=True)
class ShowMessage:
    """Show a text below a table; the last column explains the others."""

    text: str
    rows: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ShowError:
    """Show a mistake of the user, with the remedy."""

    text: str


@dataclass(frozen=True, slots=True)
class Save:
    """Write the conversation to a file."""

    path: str


@dataclass(frozen=True, slots=True)
class Load:
    """Replace the conversation by the one in a file."""

    path: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Ask the last question again; its answer stays until there is another."""


@dataclass(frozen=True, slots=True)
class Quit:
    """End the chat."""


Effect: TypeAlias = ShowMessage | ShowError | Save | Load | Retry | Quit


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command.

    Attributes:
        usage: Name and arguments as shown by ``/help``.
        help: Description in a line.
        run: Function of the session and the rest of the line.
    """

    usage: str
    help: str
    run: Callable[[Session, str], Effect]


def is_command(line: str) -> bool:
    """Tell whether a line is a command; ``//`` starts a text for the model with a slash."""
    return line.startswith("/") and not line.startswith("//")


def unescape(line: str) -> str:
    """Return the text for the model that a line stands for."""
    return line[1:] if line.startswith("//") else line


def run_command(session: Session, line: str) -> Effect:
    """Carry out a line that starts with a slash."""
    name, _, argument = line[1:].partition(" ")
    name = name.strip()
    command = COMMANDS.get(ALIASES.get(name.lower(), name.lower()))
    if command is not None:
        return command.run(session, argument.strip())
    near = get_close_matches(name.lower(), COMMANDS, n=1)
    hint = f"did you mean /{near[0]}?" if near else "/help lists the commands"
    return ShowError(f"unknown command /{name}: {hint}")


def _help(session: Session, argument: str) -> Effect:
    """List the commands and keys."""
    keys = (
        "Enter sends; Alt+Enter, or a backslash before Enter, starts a new line;",
        'text between """ and """ may hold any lines; // sends a text that starts with a slash.',
        "Ctrl-C stops an answer; at the prompt it clears the line, twice it leaves. Ctrl-D leaves.",
    )
    rows = tuple((command.usage, command.help) for command in COMMANDS.values())
    return ShowMessage("\n" + "\n".join(keys), rows)


def _set(session: Session, argument: str) -> Effect:
    """Show all settings, show one, or choose a value."""
    if not argument:
        rows = tuple((s.name, *_standing(session, s), s.help) for s in SETTINGS)
        return ShowMessage("\n/set name value chooses; /set name default goes back.", rows)
    name, _, text = argument.partition("=" if "=" in argument.split()[0] else " ")
    try:
        setting = find_setting(name)
        if not text.strip():
            shown = _shown(session, setting)
            return ShowMessage(f"{shown}: {setting.help} It {setting.allowed}.")
        value = None if text.strip() in ("default", "none") else setting.parse(text)
        session.settings.set(setting.name, value)
    except SettingError as error:
        return ShowError(str(error))
    return ShowMessage(_shown(session, setting))


def _standing(session: Session, setting: Setting) -> tuple[str, str]:
    """Render the value of a setting, and its source."""
    value, source = session.settings.standing(setting)
    return ("?" if source == "server" else show_value(value)), source


def _shown(session: Session, setting: Setting) -> str:
    """Render name, value and source of a setting."""
    value, source = _standing(session, setting)
    return f"{setting.name} = {value} ({source})"


def show_value(value: Value | None) -> str:
    """Render a value as a user types it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return " ".join('"' + item.replace("\n", "\\n").replace('"', '\\"') + '"' for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _system(session: Session, argument: str) -> Effect:
    """Show, choose or remove the system message."""
    if not argument:
        return ShowMessage(session.system or "no system message; /system TEXT sets one")
    session.system = None if argument == "none" else argument
    return ShowMessage("system message removed" if session.system is None else "system message set")


def _clear(session: Session, argument: str) -> Effect:
    """Remove all turns."""
    session.clear()
    return ShowMessage("conversation cleared")


def _undo(session: Session, argument: str) -> Effect:
    """Take the last question back."""
    question = session.undo()
    if question is None:
        return ShowError("there is no question to take back")
    return ShowMessage(f"taken back: {' '.join(question.split())}")


def _retry(session: Session, argument: str) -> Effect:
    """Ask for the last question to be answered again."""
    asked = any(message["role"] == "user" for message in session.messages)
    return Retry() if asked else ShowError("there is no question to ask again")


def _save(session: Session, argument: str) -> Effect:
    """Ask for the conversation to be written."""
    return Save(argument) if argument else ShowError("/save needs a file name: /save chat.json")


def _load(session: Session, argument: str) -> Effect:
    """Ask for a conversation to be read."""
    return Load(argument) if argument else ShowError("/load needs a file name: /load chat.json")


def _stats(session: Session, argument: str) -> Effect:
    """Show the figures of the last answer and of the session."""
    if session.last is None:
        return ShowMessage("no answer yet")
    last = statistics_line(session.last)
    return ShowMessage(f"last answer  {last}\nsession      {totals_line(session.totals)}")


def _exit(session: Session, argument: str) -> Effect:
    """Leave."""
    return Quit()


COMMANDS: dict[str, Command] = {
    "help": Command("/help", "this list", _help),
    "set": Command("/set [name [value]]", "show or choose settings", _set),
    "system": Command(
        "/system [TEXT | none]", "show, choose or remove the system message", _system
    ),
    "clear": Command("/clear", "forget the conversation; the system message stays", _clear),
    "undo": Command("/undo", "take back the last question and its answer", _undo),
    "retry": Command("/retry", "answer the last question again", _retry),
    "save": Command("/save FILE", "write messages and settings as JSON", _save),
    "load": Command("/load FILE", "go on with a saved conversation", _load),
    "stats": Command("/stats", "tokens, times and speed", _stats),
    "exit": Command("/exit", "leave", _exit),
}

ALIASES = {"quit": "exit", "bye": "exit", "?": "help"}
