"""``asyncgen chat``: one answer to one prompt, or a conversation in the terminal."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from asyncgen_apps.cli.common_options import Debug, Stats, text_of, with_chat_source, with_settings
from asyncgen_apps.cli.errors import INTERRUPTED, UserError, one_line_errors
from asyncgen_apps.cli.process import prepare_process
from asyncgen_apps.cli.remote import KEY_VARIABLE, is_typed, remote_source
from asyncgen_apps.cli.session import Session, model_of
from asyncgen_apps.cli.settings import Settings, model_values
from asyncgen_apps.cli.source import DEMO, Source
from asyncgen_apps.cli.storage import LastConversation


@with_settings
@with_chat_source
def chat(
    settings: Settings,
    context: typer.Context,
    prompt: Annotated[
        str | None, typer.Argument(help="Answer this and end; - or a pipe: standard input.")
    ] = None,
    source: Source = DEMO,
    url: Annotated[
        str | None,
        typer.Option(
            help="Talk to a server instead: ws://host:port, or wss://. Its token is --token or "
            f"{KEY_VARIABLE}.",
        ),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the last conversation.")
    ] = False,
    save: Annotated[
        bool,
        typer.Option("--save/--no-save", help="Keep the conversation, and what was typed."),
    ] = True,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(help="Every answer is a value that the JSON schema in this file allows."),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No Markdown in the conversation.")] = False,
    stats: Stats = True,
    debug: Debug = False,
) -> None:
    """Chat with a model: answer PROMPT and end, or start a conversation.

    Example: asyncgen chat "Tell me a story about a fox." --seed 7
    """
    with one_line_errors(debug):
        last = LastConversation(is_continued=go_on)
        saved = last.read() if go_on else None
        if not (is_typed(context, "model") or is_typed(context, "url")):
            model, url = model_of(saved, source.model)
            source = replace(source, model=model)
        if url is not None:
            source = remote_source(url, context)
        session = Session(model=_lasting(source), settings=settings, system=system)
        if json_schema is not None:
            session.json_schema = _schema(json_schema)
        if saved is not None:
            session.go_on(saved)
        question = _question(prompt)
        if url is None:
            prepare_process(source.threads)

        import anyio

        if question is not None:
            # A single answer is kept only if it continues a conversation.
            kept = last if go_on and save else None
            raise typer.Exit(anyio.run(_answer_once, source, session, question, stats, kept))
        if not sys.stdout.isatty():
            raise UserError("standard output is no terminal: give a PROMPT to get one answer")
        look = {"raw": raw, "stats": stats, "debug": debug}
        raise typer.Exit(anyio.run(_converse, source, session, look, last if save else None))


def _lasting(source: Source) -> str:
    """Return a name of the model that is valid in any folder."""
    is_here = source.url is None and source.model != "demo" and Path(source.model).exists()
    return str(Path(source.model).resolve()) if is_here else source.name


def _schema(file: Path) -> dict[str, Any]:
    """Read a JSON schema."""
    try:
        schema = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"--json-schema: {file} cannot be read: {error}") from error
    if not isinstance(schema, dict):
        raise UserError(f"--json-schema: {file} holds no JSON schema, which is an object")
    return schema


def _question(prompt: str | None) -> str | None:
    """Return the single question to answer, ``None`` for a conversation."""
    question = text_of(prompt)
    if question is None:
        return None
    if not question.strip():
        raise UserError("the prompt is empty: give some text, or pipe it in")
    return question if question == prompt else question.rstrip("\n")


async def _answer_once(
    source: Source, session: Session, question: str, stats: bool, last: LastConversation | None
) -> int:
    """Print one answer, and its statistics on standard error."""
    from rich.console import Console

    from asyncgen_apps.cli.answer import answer_once
    from asyncgen_apps.cli.loading import opened
    from asyncgen_apps.cli.render import note
    from asyncgen_apps.cli.statistics import statistics_line

    async with opened(source) as llm:
        params: Any = {**session.params(), "separate_reasoning": False}
        stream = llm.stream(session.prompt(question), **params)
        completion, interrupted = await answer_once(stream)
    if last is not None:
        session.keep(question, completion)
        last.keep(session)
    if stats:
        note(Console(stderr=True), statistics_line(completion))
    return INTERRUPTED if interrupted else 0


async def _converse(
    source: Source, session: Session, look: dict[str, Any], last: LastConversation | None
) -> int:
    """Hold a conversation in the terminal."""
    from rich.console import Console

    from asyncgen_apps.cli.interactive import Chat
    from asyncgen_apps.cli.loading import opened
    from asyncgen_apps.cli.prompt_input import line_reader
    from asyncgen_apps.cli.render import note

    console = Console()
    read_line = line_reader(remember=last is not None)
    async with opened(source) as llm:
        note(console, f"{source.name} · /help lists the commands, /exit leaves")
        if session.messages:
            note(console, f"going on behind {len(session.messages)} messages")
        # The settings of a server's model are not known.
        session.settings.model = model_values(getattr(llm, "generation_config", None))
        return await Chat(llm, session, read_line, console, **look, last=last).run()
