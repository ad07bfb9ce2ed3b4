"""Turn an exception into one line with the remedy and an exit code.

Each command runs inside :func:`one_line_errors`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from asyncgen_apps.cli.render import error_line
from asyncgen_apps.cli.session import ConversationError
from asyncgen_apps.cli.settings import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


FAILED = 1
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


class UserError(Exception):
    """Mistake in the call of a command, with the remedy."""


def require_installed(names: Sequence[str], *, extra: str) -> None:
    """Check before any work that the modules of a command are installed.

    Args:
        names: Names of the modules.
        extra: Extra of ours that installs them.

    Raises:
        UserError: Some are missing.
    """
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f'{" and ".join(missing)} not installed: pip install "asyncgen[{extra}]"')


@contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """Run a command; an error becomes a line on standard error and an exit code.

    Args:
        debug: Let the traceback through instead.

    Raises:
        typer.Exit: With 1 after an error, 130 after Ctrl-C, 141 if the output is closed.
    """
    try:
        yield
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Python flushes standard output once more at exit, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None
    except Exception as error:
        if debug:
            raise
        error_line(Console(stderr=True), describe(error))
        raise typer.Exit(FAILED) from None


def describe(error: Exception) -> str:
    """Describe an error in words; an unexpected one also by its type."""
    from asyncgen import AsyncgenError

    if isinstance(error, AsyncgenError | SettingError | ConversationError | UserError):
        return str(error)
    name = type(error).__name__
    return f"{name}: {error} (--debug shows the traceback)" if str(error) else name
