from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from asyncgen import ContextLengthError, EngineDiedError, InvalidRequestError
from asyncgen_apps.cli.interactive import Chat
from asyncgen_apps.cli.session import Session
from tests.apps.cli.doubles import Answer, ScriptedLLM

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio


class Table:
    """A chat whose user types the given lines."""

    def __init__(self, lines: Sequence[str], llm: ScriptedLLM, **options: bool) -> None:
        self._lines = list(lines)
        self.llm = llm
        self.session = Session("demo")
        self.out = io.StringIO()
        console = Console(file=self.out, width=100, height=30)
        self.chat = Chat(llm, self.session, self._read, console, **{"raw": True, **options})

    async def _read(self) -> str:
        if not self._lines:
            raise EOFError
        return self._lines.pop(0)

    async def run(self) -> str:
        """Chat to the end; return what was shown."""
        async with self.llm:
            self.code = await self.chat.run()
        return self.out.getvalue()


async def test_a_conversation_is_kept_as_messages() -> None:
    table = Table(["Hi", "/system Be kind.", "More", ""], ScriptedLLM([Answer(("Hel", "lo"))]))
    shown = await table.run()
    assert "Hello\n" in shown and "An answer.\n" in shown
    assert table.code == 0
    assert table.llm.asked[1][0] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "More"},
    ]


async def test_settings_reach_the_request() -> None:
    table = Table(["/set temperature 0.5", "/set sample on", "Hi"], ScriptedLLM())
    await table.run()
    assert table.llm.asked[0][1] == {"temperature": 0.5, "do_sample": True}


@pytest.mark.parametrize("stats", [True, False])
async def test_statistics_stand_below_an_answer_if_wanted(stats: bool) -> None:
    shown = await Table(["Hi"], ScriptedLLM(), stats=stats).run()
    assert ("tokens/s" in shown) == stats


async def test_a_stopped_answer_stays_in_the_conversation_and_the_chat_goes_on() -> None:
    llm = ScriptedLLM([Answer(("half",), interrupts=1)])
    table = Table(["Hi", "Go on"], llm)
    shown = await table.run()
    assert "ended by cancelled" in shown
    assert llm.asked[1][0][1] == {"role": "assistant", "content": "half"}


async def test_a_second_interrupt_leaves() -> None:
    table = Table(["Hi", "never read"], ScriptedLLM([Answer(("half",), interrupts=2)]))
    await table.run()
    assert table.code == 0
    assert len(table.llm.asked) == 1


async def test_a_failed_question_leaves_no_trace() -> None:
    error = InvalidRequestError("top_p", 3, "from 0 to 1")
    table = Table(["Hi", "Again"], ScriptedLLM([Answer((), error)]))
    shown = await table.run()
    assert "error: `top_p` is 3: from 0 to 1" in shown
    assert "Traceback" not in shown
    assert table.llm.asked[1][0] == [{"role": "user", "content": "Again"}]


async def test_a_full_context_says_how_to_start_anew() -> None:
    error = ContextLengthError("max_new_tokens", None, "the prompt is too long")
    shown = await Table(["Hi", "More"], ScriptedLLM([Answer(), Answer((), error)])).run()
    assert "/clear starts a new conversation" in shown


async def test_a_dead_engine_ends_the_chat_with_an_error() -> None:
    llm = ScriptedLLM([Answer((), EngineDiedError("the decode thread died"))], healthy=False)
    table = Table(["Hi", "never read"], llm)
    assert "error: the decode thread died" in await table.run()
    assert table.code == 1


async def test_an_unexpected_error_is_a_line_or_with_debug_a_traceback() -> None:
    shown = await Table(["Hi"], ScriptedLLM([Answer((), ZeroDivisionError("oops"))])).run()
    assert "error: ZeroDivisionError: oops (--debug shows the traceback)" in shown
    with pytest.raises(ZeroDivisionError):
        await Table(["Hi"], ScriptedLLM([Answer((), ZeroDivisionError())]), debug=True).run()


async def test_saving_and_loading(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    first = Table(["/set seed 7", "Hi", f"/save {file}"], ScriptedLLM())
    assert f"saved to {file}" in await first.run()
    assert json.loads(file.read_text())["messages"][1]["content"] == "An answer."
    second = Table([f"/load {file}", "More"], ScriptedLLM())
    assert "2 messages loaded" in await second.run()
    prompt, params = second.llm.asked[0]
    assert len(prompt) == 3 and params == {"seed": 7}


async def test_mistakes_with_files_and_commands_stay_in_the_session(tmp_path: Path) -> None:
    lines = [f"/load {tmp_path}/none.json", "/lod x", "/set top_p 5", "//slash", "/exit", "never"]
    table = Table(lines, ScriptedLLM())
    shown = await table.run()
    assert shown.count("error: ") == 3
    assert table.llm.asked[0][0] == [{"role": "user", "content": "/slash"}]
    assert len(table.llm.asked) == 1


async def test_markdown_is_rendered_unless_raw() -> None:
    answers = [Answer(("**bold**\n",))]
    assert "**" not in await Table(["Hi"], ScriptedLLM(answers), raw=False, stats=False).run()
