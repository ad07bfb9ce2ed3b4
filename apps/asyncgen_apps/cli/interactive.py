"""The chat in a terminal: reads a line, answers it or carries out a command, until the user leaves.

Joins the session, the commands, the files and the screen; how lines are read is handed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen_apps.cli.answer import Interrupts, show_answer
from asyncgen_apps.cli.commands import (
    Complain,
    Leave,
    Load,
    Save,
    Say,
    is_command,
    run_command,
    unescape,
)
from asyncgen_apps.cli.figures import statistics_line
from asyncgen_apps.cli.guard import FAILED, describe
from asyncgen_apps.cli.render import MarkdownView, PlainView, error_line, note
from asyncgen_apps.cli.session import ConversationError
from asyncgen_apps.cli.storage import read_conversation, write_conversation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rich.console import Console

    from asyncgen_apps.cli.commands import Effect
    from asyncgen_apps.cli.session import Session
    from asyncgen_apps.cli.source import LLM


class Chat:
    """One chat with the user.

    Args:
        llm: The model.
        session: The conversation.
        read_line: Asks for one input; raises ``EOFError`` or ``KeyboardInterrupt`` to leave.
        console: Where everything is shown.
        raw: Show answers as plain text instead of Markdown.
        stats: Print a line of statistics below each answer.
        debug: Let unexpected exceptions through.
    """

    def __init__(
        self,
        llm: LLM,
        session: Session,
        read_line: Callable[[], Awaitable[str]],
        console: Console,
        *,
        raw: bool = False,
        stats: bool = True,
        debug: bool = False,
    ) -> None:
        self._llm = llm
        self._session = session
        self._read_line = read_line
        self._console = console
        self._raw = raw
        self._stats = stats
        self._debug = debug

    async def run(self) -> int:
        """Chat until the user leaves.

        Returns:
            The exit code: 1 if the model can no longer answer, else 0.
        """
        while True:
            try:
                line = await self._read_line()
            except (EOFError, KeyboardInterrupt):
                return 0
            if not line:
                continue
            if is_command(line):
                effect = run_command(self._session, line)
                if isinstance(effect, Leave):
                    return 0
                self._carry_out(effect)
            elif await self._answer(unescape(line)):
                return 0
            if not self._llm.healthy:
                return FAILED

    def _carry_out(self, effect: Effect) -> None:
        """Do what a command asked for."""
        try:
            match effect:
                case Say(text):
                    note(self._console, text)
                case Complain(text):
                    error_line(self._console, text)
                case Save(path):
                    file = write_conversation(path, self._session.dump())
                    note(self._console, f"saved to {file}")
                case Load(path):
                    self._session.restore(read_conversation(path))
                    note(self._console, f"{len(self._session.messages)} messages loaded")
        except ConversationError as error:
            error_line(self._console, str(error))

    async def _answer(self, question: str) -> bool:
        """Answer a question and keep both, or say why not; ``True`` if the user wants to leave."""
        interrupts = Interrupts()
        try:
            params = self._session.settings.params()
            stream = self._llm.stream(self._session.prompt(question), **params)
            view = PlainView(self._console.file) if self._raw else MarkdownView(self._console)
            completion = await show_answer(stream, view, interrupts)
        except Exception as error:
            if self._debug:
                raise
            self._report(error)
            return interrupts.wants_to_leave
        self._session.keep(question, completion)
        if self._stats:
            note(self._console, statistics_line(completion))
        return interrupts.wants_to_leave

    def _report(self, error: Exception) -> None:
        """Show why there is no answer; the conversation is as it was before the question."""
        from asyncgen import ContextLengthError

        hint = ""
        if isinstance(error, ContextLengthError) and self._session.messages:
            hint = "; /clear starts a new conversation"
        error_line(self._console, describe(error) + hint)
