"""Chat in a terminal: read a line, answer it or run a command, until the user leaves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen_apps.cli.answer import show_answer, with_interrupts
from asyncgen_apps.cli.commands import (
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
from asyncgen_apps.cli.errors import FAILED, describe
from asyncgen_apps.cli.keys import keys_unseen
from asyncgen_apps.cli.render import MarkdownView, PlainView, error_line, listing, note
from asyncgen_apps.cli.session import ConversationError
from asyncgen_apps.cli.statistics import statistics_line
from asyncgen_apps.cli.storage import read_conversation, write_conversation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from rich.console import Console

    from asyncgen_apps.cli.answer import Interrupts
    from asyncgen_apps.cli.commands import Effect
    from asyncgen_apps.cli.session import Session
    from asyncgen_apps.cli.source import LLM
    from asyncgen_apps.cli.storage import LastConversation


INSISTING_SECONDS = 2.0
"""Time in which a second Ctrl-C at the prompt leaves."""


class Chat:
    """One chat with the user.

    Args:
        llm: The model.
        session: The conversation.
        read_line: Function that asks for one input; it raises ``EOFError`` to leave, and
            ``KeyboardInterrupt`` to clear the line, or twice to leave.
        console: Console of the chat.
        raw: Show answers as plain text instead of Markdown.
        stats: Print a line of statistics below each answer.
        debug: Let unexpected exceptions through.
        last: Store of the conversation for ``--continue``; ``None`` keeps nothing.
        clock: Function that returns seconds.
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
        last: LastConversation | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._llm = llm
        self._session = session
        self._read_line = read_line
        self._console = console
        self._raw = raw
        self._stats = stats
        self._debug = debug
        self._last = last
        self._clock = clock
        self._interrupted_at: float | None = None

    async def run(self) -> int:
        """Chat until the user leaves.

        Returns:
            The exit code: 1 if the model can no longer answer, else 0.
        """
        code = await with_interrupts(self._talk)
        if self._keep():
            note(self._console, "asyncgen chat --continue goes on with this conversation")
        return code

    async def _talk(self, interrupts: Interrupts) -> int:
        """Read and answer until the input ends or the engine dies."""
        while True:
            try:
                line = await self._line(interrupts)
            except KeyboardInterrupt:
                if self._insists():
                    return 0
                note(self._console, "Ctrl-C once more leaves")
                continue
            except EOFError:
                return 0
            self._interrupted_at = None
            if not line:
                continue
            if is_command(line):
                effect = run_command(self._session, line)
                if isinstance(effect, Quit):
                    return 0
                if isinstance(effect, Retry):
                    leaves = await self._again(interrupts)
                else:
                    leaves = self._carry_out(effect)
            else:
                leaves = await self._answer(unescape(line), interrupts)
            if leaves:
                return 0
            self._keep()
            if not self._llm.is_healthy:
                return FAILED

    async def _line(self, interrupts: Interrupts) -> str:
        """Ask for one input; a signal counts as Ctrl-C, also one that came before the prompt."""
        if interrupts.take_pending():
            raise KeyboardInterrupt
        line: str | None = None
        with anyio.CancelScope() as scope, interrupts.meaning(scope.cancel):
            line = await self._read_line()
        if line is None:
            raise KeyboardInterrupt
        return line

    def _insists(self) -> bool:
        """Tell whether a Ctrl-C at the prompt follows closely on another one."""
        before, self._interrupted_at = self._interrupted_at, self._clock()
        return before is not None and self._interrupted_at - before < INSISTING_SECONDS

    def _keep(self) -> bool:
        """Keep the conversation as it is; ``True`` if there is one to go on with."""
        if self._last is None:
            return False
        try:
            return self._last.keep(self._session)
        except ConversationError as error:
            self._last = None
            error_line(self._console, f"this conversation is not kept: {error}")
            return False

    def _carry_out(self, effect: Effect) -> bool:
        """Carry out the effect of a command; return ``False``, which stays in the chat."""
        try:
            match effect:
                case ShowMessage(text, rows):
                    if rows:
                        listing(self._console, rows)
                    note(self._console, text)
                case ShowError(text):
                    error_line(self._console, text)
                case Save(path):
                    file = write_conversation(path, self._session.dump())
                    note(self._console, f"saved to {file}")
                case Load(path):
                    self._session.restore(read_conversation(path))
                    note(self._console, f"{len(self._session.messages)} messages loaded")
        except ConversationError as error:
            error_line(self._console, str(error))
        return False

    async def _again(self, interrupts: Interrupts) -> bool:
        """Answer the last question again; the old answer stays until there is a new one."""
        messages = list(self._session.messages)
        answers = self._session.totals.answers
        question = self._session.undo()
        assert question is not None
        try:
            return await self._answer(question, interrupts)
        finally:
            if self._session.totals.answers == answers:
                self._session.messages[:] = messages

    async def _answer(self, question: str, interrupts: Interrupts) -> bool:
        """Answer a question and keep both, or report the error; ``True`` if the user leaves."""
        try:
            params: Any = {**self._session.params(), "separate_reasoning": False}
            stream = self._llm.stream(self._session.prompt(question), **params)
            with keys_unseen():
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
        """Show the error; the conversation is as before the question."""
        from asyncgen import ContextLengthError

        hint = ""
        if isinstance(error, ContextLengthError) and self._session.messages:
            hint = "; /clear starts a new conversation"
        error_line(self._console, describe(error) + hint)
