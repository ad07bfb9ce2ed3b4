from __future__ import annotations

import io
import json
import signal
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from rich.console import Console

from asyncgen import ContextLengthError, EngineDiedError, InvalidRequestError
from asyncgen_apps.cli.interactive import Chat
from asyncgen_apps.cli.session import Session
from asyncgen_apps.cli.storage import LastConversation
from tests.apps.cli.doubles import Answer, ScriptedLLM
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

pytestmark = pytest.mark.anyio


class Table:
    """A chat whose user types the given lines, presses Ctrl-C, or waits."""

    def __init__(
        self, lines: Sequence[str | type[BaseException] | float], llm: ScriptedLLM, **options: Any
    ) -> None:
        self._lines = list(lines)
        self.llm = llm
        self.session = Session("demo")
        self.out = io.StringIO()
        console = Console(file=self.out, width=100, height=30)
        self._time = 0.0
        options = {"raw": True, "clock": lambda: self._time, **options}
        self.chat = Chat(llm, self.session, self._read, console, **options)

    async def _read(self) -> str:
        """Type the next line; a number lets so many seconds pass, an exception is a key."""
        while True:
            line = self._lines.pop(0) if self._lines else EOFError
            if isinstance(line, str):
                return line
            if not isinstance(line, float):
                raise line
            self._time += line

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
    told = {"separate_reasoning": False}  # the terminal shows all that is written
    assert table.llm.asked[0][1] == {"temperature": 0.5, "do_sample": True, **told}


@pytest.mark.parametrize("stats", [True, False])
async def test_statistics_stand_below_an_answer_if_wanted(stats: bool) -> None:
    shown = await Table(["Hi"], ScriptedLLM(), stats=stats).run()
    assert ("tokens/s" in shown) == stats


async def test_a_stopped_answer_stays_in_the_conversation_and_the_chat_goes_on() -> None:
    llm = ScriptedLLM([Answer(("half",), interrupts=1)])
    table = Table(["Hi", "Go on"], llm)
    shown = await table.run()
    assert "stopped" in shown
    assert llm.asked[1][0][1] == {"role": "assistant", "content": "half"}


async def test_a_second_interrupt_leaves() -> None:
    table = Table(["Hi", "never read"], ScriptedLLM([Answer(("half",), interrupts=2)]))
    await table.run()
    assert table.code == 0
    assert len(table.llm.asked) == 1


CTRL_C = KeyboardInterrupt


@for_each(
    ("typed", "asked"),
    [
        ([CTRL_C, "Hi"], 1),
        ([CTRL_C, 1.9, CTRL_C, "Hi"], 0),
        ([CTRL_C, 2.1, CTRL_C, "Hi"], 1),
        ([CTRL_C, "Hi", CTRL_C, "More"], 2),
        (["Hi", CTRL_C, "More"], 2),
    ],
)
async def test_a_second_interrupt_at_the_prompt_leaves_if_it_comes_soon(
    typed: list[Any], asked: int
) -> None:
    table = Table(typed, ScriptedLLM())
    assert "Ctrl-C once more leaves" in await table.run()
    assert len(table.llm.asked) == asked
    assert table.code == 0


async def test_a_signal_at_the_prompt_is_a_ctrl_c() -> None:
    """One that comes just behind an answer, when nothing is answered and no line is read yet."""
    table = Table(["Hi", "More"], ScriptedLLM())
    reading = table.chat._read_line

    async def read() -> str:
        if len(table.llm.asked) == 1 and "once more" not in table.out.getvalue():
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep_forever()
        return await reading()

    table.chat._read_line = read
    assert table.out.getvalue() == "" and "once more leaves" in await table.run()
    assert len(table.llm.asked) == 2


@pytest.fixture
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LastConversation]:
    """The last conversation of a user with a home of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return LastConversation


async def test_a_conversation_is_kept_as_it_goes(last: Callable[..., LastConversation]) -> None:
    kept = last()
    texts = []

    class Watched(Table):
        async def _read(self) -> str:
            texts.append(
                [message["content"] for message in json.loads(kept.file.read_text())["messages"]]
                if kept.file.exists()
                else None
            )
            return await super()._read()

    answers = [Answer(("1",)), Answer(("2",)), Answer((), ValueError()), Answer(("3",))]
    lines = ["a", "b", "/retry", "/retry", "/undo", "/clear", "/system s", "c"]
    table = Watched(lines, ScriptedLLM(answers), last=kept)
    assert "chat --continue goes on" in await table.run()
    ab = ["a", "1", "b", "2"]
    after = [None, ["a", "1"], ab, ab, ["a", "1", "b", "3"], ["a", "1"], None, None]
    assert texts == [*after, ["s", "c", "An answer."]]
    assert kept.file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in kept.file.parent.iterdir()] == ["last_chat.json"]

    other = last()
    await Table(["/clear"], ScriptedLLM(), last=other).run()
    assert other.file.exists(), "a chat in which nothing was said is not the last one"


async def test_failure_to_save_the_conversation_is_reported_once(
    last: Callable[..., LastConversation], tmp_path: Path
) -> None:
    (tmp_path / "asyncgen").write_text("a file where the folder should be")
    shown = await Table(["a", "b"], ScriptedLLM(), last=last()).run()
    assert shown.count("error: this conversation is not kept: cannot write") == 1
    assert "--continue" not in shown


async def test_a_failed_question_leaves_no_trace() -> None:
    error = InvalidRequestError("top_p", 3, "from 0 to 1")
    table = Table(["Hi", "Again"], ScriptedLLM([Answer((), error)]))
    shown = await table.run()
    assert "error: `top_p` is 3: from 0 to 1" in shown
    assert "Traceback" not in shown
    assert table.llm.asked[1][0] == [{"role": "user", "content": "Again"}]


async def test_full_context_suggests_clear() -> None:
    error = ContextLengthError("max_new_tokens", None, "the prompt is too long")
    shown = await Table(["Hi", "More"], ScriptedLLM([Answer(), Answer((), error)])).run()
    assert "/clear starts a new conversation" in shown


async def test_a_dead_engine_ends_the_chat_with_an_error() -> None:
    llm = ScriptedLLM([Answer((), EngineDiedError("the decode thread died"))], is_healthy=False)
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
    assert len(prompt) == 3 and params == {"seed": 7, "separate_reasoning": False}


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
