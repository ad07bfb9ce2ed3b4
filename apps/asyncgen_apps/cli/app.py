"""Join the commands of ``asyncgen``. Imports no torch."""

from importlib.util import find_spec
from typing import Annotated

import typer

from asyncgen_apps.cli.batch import batch
from asyncgen_apps.cli.chat import chat
from asyncgen_apps.cli.errors import UserError, one_line_errors
from asyncgen_apps.cli.generate import generate
from asyncgen_apps.cli.gradio import gradio
from asyncgen_apps.cli.help import App
from asyncgen_apps.cli.quantize import quantize
from asyncgen_apps.cli.serve import serve
from asyncgen_apps.cli.serve_ray import serve_ray
from asyncgen_apps.cli.serve_ws import serve_ws

NO_BENCH = (
    "the benchmarks are part of the checkout, not of the package: in a checkout of asyncgen, "
    'run pip install -e ".[bench]"'
)
HELP = """Stream text from a local language model.

Begin with `asyncgen chat`. Each command has an example in its own --help."""
ANY = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Settings of a command that takes whatever is typed behind it."""


def no_bench() -> None:
    """Say how to get the benchmarks, which a wheel does not carry."""
    with one_line_errors():
        raise UserError(NO_BENCH)


app = App(
    name="asyncgen",
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("chat")(chat)
app.command("generate")(generate)
app.command("batch")(batch)
app.command("serve")(serve)
app.command("serve-ws")(serve_ws)
app.command("serve-ray")(serve_ray)
app.command("gradio")(gradio)
app.command("quantize")(quantize)
if find_spec("asyncgen_apps.bench") is None:
    app.command("bench", hidden=True, add_help_option=False, context_settings=ANY)(no_bench)
else:
    from asyncgen_apps.bench.commands import bench

    app.add_typer(bench, name="bench")


def _show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"asyncgen {version('asyncgen')}")
        except PackageNotFoundError:
            typer.echo("asyncgen, run from a checkout that is not installed")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Version.")
    ] = False,
) -> None:
    """Take options that belong to no command."""
