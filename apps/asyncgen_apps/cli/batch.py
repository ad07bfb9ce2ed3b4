"""``asyncgen batch``: answer a file of requests, and go on after an interruption."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from asyncgen_apps.cli.access import ModelNames
from asyncgen_apps.cli.common_options import Debug, with_chat_source, with_settings
from asyncgen_apps.cli.errors import FAILED, UserError, one_line_errors, require_installed
from asyncgen_apps.cli.process import prepare_process
from asyncgen_apps.cli.render import note
from asyncgen_apps.cli.settings import Settings
from asyncgen_apps.cli.source import DEMO, Source
from asyncgen_apps.cli.statistics import SEPARATOR, about

if TYPE_CHECKING:
    from rich.console import RenderableType

    from asyncgen import AsyncLLM
    from asyncgen_apps.batch.answers import AnswersFile
    from asyncgen_apps.batch.run import RunProgress

NEEDED = ("pydantic",)
MAX_RUNNING = 64
STOPPED = "stopped: run the command again to go on behind the last answer"
OTHERWISE = ", without --overwrite"


@dataclass(frozen=True, slots=True)
class _BatchOptions:
    """Options of one run."""

    prompts: Path
    output: Path
    overwrite: bool
    ordered: bool
    names: list[str]
    defaults: dict[str, Any]
    max_running: int


@with_settings
@with_chat_source
def batch(
    settings: Settings,
    prompts: Annotated[Path, typer.Argument(help="File with a request or a prompt a line.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File that the answers go to.")],
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Begin anew; if not given, go on after the last answer."),
    ] = False,
    ordered: Annotated[
        bool, typer.Option("--ordered/--unordered", help="Answers in the order of their requests.")
    ] = True,
    source: Source = DEMO,
    name: ModelNames = None,
    max_running: Annotated[
        int, typer.Option(min=1, help="Most answers that share a step.")
    ] = MAX_RUNNING,
    debug: Debug = False,
) -> None:
    """Answer every line of PROMPTS into a file, on the shared batch.

    A line is a request of OpenAI's batch format, a text in quotes, or an object with `prompt` or
    `messages` and parameters. Run again, it answers what is not answered yet.

    Example: asyncgen batch prompts.jsonl --output answers.jsonl
    """
    with one_line_errors(debug):
        require_installed(NEEDED, extra="apps")
        if output.exists() and prompts.exists() and output.samefile(prompts):
            raise UserError("--output is the file of the requests: choose another")
        source = replace(source, max_running=max_running)
        defaults = dict(settings.params())
        names = name or [source.model]
        plan = _BatchOptions(prompts, output, overwrite, ordered, names, defaults, max_running)
        prepare_process(source.threads)

        import anyio

        try:
            code = anyio.run(_batch, source, plan)
        except KeyboardInterrupt:
            note(Console(stderr=True), STOPPED + (OTHERWISE if overwrite else ""))
            raise
        raise typer.Exit(code)


async def _batch(source: Source, plan: _BatchOptions) -> int:
    """Answer the file; return the exit code."""
    import anyio.to_thread

    from asyncgen_apps.batch.answers import AnswersError, AnswersFile
    from asyncgen_apps.batch.requests import count_lines, read_lines
    from asyncgen_apps.batch.run import EngineLostError, RunProgress, answer_lines, answerer
    from asyncgen_apps.cli.loading import opened

    with ExitStack() as stack:
        try:
            file = stack.enter_context(plan.prompts.open("rb"))
            answers = stack.enter_context(AnswersFile(plan.output, overwrite=plan.overwrite))
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}") from None
        except AnswersError as error:
            raise UserError(str(error)) from None
        num_lines = await anyio.to_thread.run_sync(count_lines, file) if file.seekable() else None
        async with opened(source) as opened_llm:
            llm: AsyncLLM = opened_llm  # type: ignore[assignment]
            progress = RunProgress(num_lines=num_lines)
            with _shown(progress, answers, plan.prompts.stat().st_size):
                try:
                    await answer_lines(
                        read_lines(file),
                        answers,
                        answerer(llm, plan.defaults, plan.names),
                        progress,
                        # Twice as many as run, so that no slot stays empty.
                        at_once=2 * plan.max_running,
                        ordered=plan.ordered,
                    )
                except AnswersError as error:
                    raise UserError(str(error)) from None
                except EngineLostError as error:
                    raise UserError(f"{error}; run the command again to go on") from error
    return FAILED if answers.num_failed else 0


@contextmanager
def _shown(progress: "RunProgress", answers: "AnswersFile", total: int) -> Iterator[None]:
    """Show the progress while the block runs, and the result in a line at its end.

    Args:
        progress: Progress of this run.
        answers: Answers of this run and of earlier ones.
        total: Bytes of all requests; 0 if not known.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    console, began = Console(stderr=True), time.monotonic()
    columns = BarColumn(), TextColumn("{task.description}")

    class Bar(Progress):
        """Progress bar that reads the figures when it is drawn."""

        def get_renderables(self) -> "Iterator[RenderableType]":
            seconds = time.monotonic() - began
            for task in self.tasks:
                task.completed = progress.skipped_bytes + progress.bytes
                task.description = figures(progress, answers, total, seconds)
            yield from super().get_renderables()

    try:
        # Without a terminal there is the last line alone.
        if console.is_terminal:
            with Bar(*columns, console=console, transient=True, refresh_per_second=5) as bar:
                bar.add_task("", total=total or None)
                yield
        else:
            yield
    finally:
        note(console, figures(progress, answers, 0, time.monotonic() - began))


def figures(progress: "RunProgress", answers: "AnswersFile", total: int, elapsed: float) -> str:
    """Describe the progress in a line.

    Args:
        progress: Progress of this run.
        answers: Answers of this run and of earlier ones.
        total: Bytes of all requests; 0 leaves the remaining time out.
        elapsed: Seconds since the first request.
    """
    of = "" if progress.num_lines is None else f" of {progress.num_lines:,}"
    parts = [f"{answers.num_answered:,}{of} answered"]
    if answers.num_failed:
        parts.append(f"{answers.num_failed:,} with errors")
    if progress.answered and elapsed > 0:
        parts.append(f"{progress.tokens / elapsed:,.0f} tokens/s")
        left = total - progress.skipped_bytes - progress.bytes
        if total and left > 0:
            parts.append(f"{about(left * elapsed / progress.bytes)} left")
    return SEPARATOR.join(parts)
