from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from asyncgen_apps.cli.prompt_input import clean_input, completions, is_unfinished, line_reader
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path


@for_each(
    ("text", "unfinished"),
    [
        ("hello", False),
        ("hello\\", True),
        ("", False),
        ('"""', True),
        ('""""', True),
        ('"""two\nlines', True),
        ('"""two\nlines"""', False),
        ('""""""', False),
        ('say """', False),
    ],
)
def test_input_continues_inside_a_block_and_after_a_backslash(text: str, unfinished: bool) -> None:
    assert is_unfinished(text) == unfinished


@for_each(
    ("text", "clean"),
    [
        ("  hello ", "hello"),
        ("one\\\ntwo", "one\ntwo"),
        ('"""\ndef f():\n    pass\n"""', "def f():\n    pass"),
        ('"""a\\\nb"""', "a\\\nb"),
        ('""""""', ""),
    ],
)
def test_marks_are_taken_out(text: str, clean: str) -> None:
    assert clean_input(text) == clean


def test_tab_knows_commands_and_settings() -> None:
    assert completions("/he") == ["/help"]
    assert completions("/set temp") == ["temperature"]
    assert completions("/set temperature 0") == []
    assert completions("") == completions("hello") == completions("/set ") == []


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("keys", "read"),
    [
        ("hello\r", "hello"),
        ("one\x1b\rtwo\r", "one\ntwo"),
        ("one\\\rtwo\r", "one\ntwo"),
        ('"""a\rb"""\r', "a\nb"),
    ],
)
async def test_keys(
    keys: str, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        assert await line_reader()() == read
    history = tmp_path / "asyncgen/chat_history"
    assert history.stat().st_mode & 0o077 == 0


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(("keys", "error"), [("\x03", KeyboardInterrupt), ("\x04", EOFError)])
async def test_leaving_keys(
    keys: str,
    error: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    anyio_backend: str,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file" / "is"))
    (tmp_path / "file").write_text("no folder can be made here")
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        with pytest.raises(error):
            await line_reader()()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_tab_completes_in_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, anyio_backend: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with (
        create_pipe_input() as pipe,
        create_app_session(input=pipe, output=DummyOutput()) as app_session,
    ):

        async def send() -> None:
            pipe.send_text("/set temp\t")
            # There is no event to wait for before the application runs.
            while not (app_session.app and app_session.app.current_buffer.text.endswith("ature")):  # noqa: ASYNC110
                await anyio.sleep(0.005)
            pipe.send_text(" 1\r")

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                assert await line_reader()() == "/set temperature 1"
