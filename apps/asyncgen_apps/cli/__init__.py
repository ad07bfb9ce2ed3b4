"""The ``asyncgen`` command: chat and generation in a terminal, and the benchmarks."""

import sys

__all__ = ["main"]

EXTRAS = ("typer", "rich", "prompt_toolkit")


def main() -> None:
    """Run the command line; the entry point of the ``asyncgen`` script."""
    try:
        from asyncgen_apps.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        sys.exit(f'error: {missing} is not installed: pip install "asyncgen[apps]"')
    app()
