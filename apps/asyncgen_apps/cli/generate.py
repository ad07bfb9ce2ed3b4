"""``asyncgen generate``: continue a text as it stands, without a chat template."""

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, cast

import typer

from asyncgen_apps.cli.common_options import Debug, Stats, text_of, with_settings, with_source
from asyncgen_apps.cli.errors import INTERRUPTED, UserError, one_line_errors
from asyncgen_apps.cli.process import prepare_process
from asyncgen_apps.cli.settings import Settings
from asyncgen_apps.cli.source import DEMO, Source

if TYPE_CHECKING:
    from asyncgen import Completion, StreamParams


@dataclass(frozen=True, slots=True)
class _Output:
    """Options of the output."""

    n: int
    as_json: bool
    stream: bool
    logprobs: bool
    top_logprobs: int | None
    stats: bool


@with_settings
@with_source
def generate(
    settings: Settings,
    prompt: Annotated[
        str | None,
        typer.Argument(help="Text to continue; - or a pipe: standard input, as it stands."),
    ] = None,
    source: Source = DEMO,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Number of continuations.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
    stream: Annotated[bool, typer.Option(help="Write text as it comes, or at the end.")] = True,
    logprobs: Annotated[bool, typer.Option("--logprobs", help="Needs --json.")] = False,
    top_logprobs: Annotated[
        int | None, typer.Option(min=0, max=100, help="Alternatives a token. Needs --logprobs.")
    ] = None,
    stats: Stats = True,
    debug: Debug = False,
) -> None:
    """Continue PROMPT as it stands, without a chat template.

    A terminal shows the prompt first, dimmed; a pipe or a file gets the continuation alone.

    Example: asyncgen generate "Once upon a time" --max-new-tokens 40
    """
    with one_line_errors(debug):
        if logprobs and not as_json:
            raise UserError("--logprobs is only written as JSON: add --json")
        if top_logprobs is not None and not logprobs:
            raise UserError("--top-logprobs needs --logprobs")
        text = text_of(prompt)
        if text is None:
            raise UserError("no prompt: give some text, or pipe it in")
        if not text:
            raise UserError("the prompt is empty: give some text, or pipe it in")
        output = _Output(n, as_json, stream, logprobs, top_logprobs, stats)
        prepare_process(source.threads)

        import anyio

        raise typer.Exit(anyio.run(_generate, source, text, settings, output))


async def _generate(source: Source, text: str, settings: Settings, output: _Output) -> int:
    """Run the request and write its result."""
    from rich.console import Console

    from asyncgen_apps.cli.answer import answer_once
    from asyncgen_apps.cli.loading import opened
    from asyncgen_apps.cli.render import note
    from asyncgen_apps.cli.statistics import statistics_line

    params = _params(settings, output)
    interrupted = 0
    async with opened(source) as llm:
        if output.stream and not output.as_json and output.n == 1:
            completion, interrupted = await answer_once(llm.stream(text, **params), text)
        else:
            completion = await llm.generate(text, **params)
            _write(source, text, completion, output)
    if output.stats and not output.as_json:
        note(Console(stderr=True), statistics_line(completion))
    return INTERRUPTED if interrupted else 0


def _params(settings: Settings, output: _Output) -> "StreamParams":
    """Join the settings with the options of this command."""
    params = dict(settings.params())
    if output.n > 1:
        params["n"] = output.n
    if output.logprobs:
        params["logprobs"] = True
        params["top_logprobs"] = output.top_logprobs or 0
    return cast("StreamParams", params)


def _write(source: Source, text: str, completion: "Completion", output: _Output) -> None:
    """Write a finished completion to standard output."""
    if output.as_json:
        sys.stdout.write(json.dumps(as_object(source.model, text, completion), ensure_ascii=False))
        sys.stdout.write("\n")
        return
    from asyncgen_apps.cli.render import PlainView

    for sample in completion.samples:
        if output.n > 1:
            sys.stdout.write(f"--- {sample.index + 1} of {output.n}\n")
        view = PlainView(prompt=text)
        view.feed(sample.text)
        view.close()


def as_object(model: str, prompt: str, completion: "Completion") -> dict[str, object]:
    """Return a completion as an object for JSON.

    The fields of the first sample stand at the top; several samples are under ``samples`` as well.
    Times are in seconds.
    """
    from dataclasses import asdict

    samples = [asdict(sample) for sample in completion.samples]
    first = {name: value for name, value in samples[0].items() if name != "index"}
    several = {"samples": samples} if len(samples) > 1 else {}
    usage = {**asdict(completion.usage), "total_tokens": completion.usage.total_tokens}
    timing = asdict(completion.timing)
    head = {"model": model, "prompt": prompt}
    return {**head, **first, **several, "usage": usage, "timing": timing}
