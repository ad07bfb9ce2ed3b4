"""The commands of ``asyncgen`` under one roof. Imports no torch."""

from typing import Annotated

import typer

from asyncgen_apps.cli.batch import batch
from asyncgen_apps.cli.bench import bench
from asyncgen_apps.cli.bench_peers import peers
from asyncgen_apps.cli.bench_structured import structured
from asyncgen_apps.cli.chat import chat
from asyncgen_apps.cli.generate import generate
from asyncgen_apps.cli.gradio import gradio
from asyncgen_apps.cli.listing import App
from asyncgen_apps.cli.quantize import quantize
from asyncgen_apps.cli.serve import serve
from asyncgen_apps.cli.serve_ray import serve_ray
from asyncgen_apps.cli.serve_ws import serve_ws

app = App(
    name="asyncgen",
    help="Stream text from a local language model.",
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
bench.command("structured")(structured)
bench.command("peers")(peers)
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
    """Stream text from a local language model."""
