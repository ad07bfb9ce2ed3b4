"""Read the user's input in a chat: history, completion, and input of several lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen_apps.cli.commands import COMMANDS
from asyncgen_apps.cli.settings import SETTINGS
from asyncgen_apps.cli.storage import state_folder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent


QUOTES = '"""'


def is_unfinished(text: str) -> bool:
    """Tell whether Enter starts a new line: after a backslash, or inside triple quotes."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return len(stripped) < 2 * len(QUOTES) or not stripped.endswith(QUOTES)
    return text.endswith("\\")


def clean_input(text: str) -> str:
    """Remove the marks of several lines from a finished input."""
    stripped = text.strip()
    if stripped.startswith(QUOTES) and not is_unfinished(stripped):
        return stripped[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text.replace("\\\n", "\n").strip()


def line_reader(*, remember: bool = True) -> Callable[[], Awaitable[str]]:
    """Return a function that asks for one input in the terminal.

    It raises ``EOFError`` on Ctrl-D and ``KeyboardInterrupt`` on Ctrl-C. Runs on asyncio only,
    because prompt_toolkit does.

    Args:
        remember: Keep what is typed for chats to come.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory

    session: PromptSession[str] = PromptSession(
        "› ",
        multiline=True,
        prompt_continuation="… ",
        history=_history() if remember else InMemoryHistory(),
        completer=_completer(),
        complete_while_typing=False,
        key_bindings=_keys(),
    )

    async def read() -> str:
        # Ctrl-C is a key here, not a signal: the terminal is in raw mode.
        return clean_input(await session.prompt_async(handle_sigint=False))

    return read


def completions(text: str) -> list[str]:
    """Return the words that Tab offers in place of the last word of ``text``."""
    *before, word = text.split(" ")
    if not before:
        words = [f"/{name}" for name in COMMANDS]
    elif before == ["/set"]:
        words = [setting.name for setting in SETTINGS]
    else:
        words = []
    return [known for known in words if word and known.startswith(word)]


def _completer() -> Completer:
    """Hand :func:`completions` to prompt_toolkit."""
    from prompt_toolkit.completion import Completer, Completion

    class Words(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterator[Completion]:
            text = document.text_before_cursor
            typed = len(text) - text.rfind(" ") - 1
            return (Completion(word, start_position=-typed) for word in completions(text))

    return Words()


def _keys() -> KeyBindings:
    """Bind Enter and Alt+Enter."""
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_unfinished(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _history() -> History:
    """Open the history of earlier sessions, readable by its owner only; in memory if refused."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    file = state_folder() / "chat_history"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))
