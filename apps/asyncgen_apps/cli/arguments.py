"""Command-line options that several commands share, the table of settings among them.

Turns :data:`asyncgen_apps.cli.options.SETTINGS` into typer options; knows no command.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console

from asyncgen_apps.cli.guard import USAGE
from asyncgen_apps.cli.options import SETTINGS, Setting, SettingError, Settings
from asyncgen_apps.cli.render import error_line

Model = Annotated[
    str, typer.Option("--model", "-m", help="demo, a folder, a hub id, or a GGUF file.")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps; chosen if not given.")]
Dtype = Annotated[
    str | None, typer.Option(help="float32, bfloat16, float16; as stored if not given.")
]
Quantize = Annotated[
    str | None,
    typer.Option(help="int8, int4: packs weights while they load; as stored if not given."),
]
KVCacheDtype = Annotated[
    str | None,
    typer.Option(
        "--kv-cache-dtype",
        help="int8: keeps keys and values in 8 bits; in the model's dtype if not given.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Compute threads; OMP_NUM_THREADS or the usable cores if not given."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Token = Annotated[
    str | None, typer.Option(envvar="HF_TOKEN", show_envvar=True, help="Token for the hub.")
]
Stats = Annotated[bool, typer.Option("--stats/--no-stats", help="Print a line of statistics.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

_PANEL = "Generation (what is not given is up to the model)"


def text_of(prompt: str | None) -> str | None:
    """Return the prompt of a command: what was typed, or what comes through a pipe.

    Args:
        prompt: The argument; ``-`` reads standard input, and so does ``None`` if it is a pipe.

    Returns:
        The text as it stands, ``None`` if there is neither.
    """
    if prompt is None and sys.stdin.isatty():
        return None
    return sys.stdin.read() if prompt in (None, "-") else prompt


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each setting, and the result as its ``settings``.

    Args:
        command: A typer command with a parameter ``settings: Settings``.

    Returns:
        The command as typer sees it, with the options in place of ``settings``.
    """
    names = [setting.name for setting in SETTINGS]

    def run(**arguments: Any) -> None:
        settings = Settings()
        for name in names:
            value = arguments.pop(name)
            if value in (None, []):
                continue
            try:
                settings.set(name, value, "command line")
            except SettingError as error:
                error_line(Console(stderr=True), str(error))
                raise typer.Exit(USAGE) from None
        command(**arguments, settings=settings)

    hints = get_type_hints(command, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in inspect.signature(command).parameters.items()
        if name != "settings"
    ]
    added = [
        inspect.Parameter(
            s.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_option(s)
        )
        for s in SETTINGS
    ]
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
    return run


def _option(setting: Setting) -> Any:
    """Describe a setting to typer; ranges are checked by the setting itself."""
    if setting.kind is bool:
        declaration = f"--{setting.name}/--greedy"
        return Annotated[bool | None, typer.Option(declaration, help=setting.help, **_SHOWN)]
    if setting.kind is list:
        text = f"{setting.help} Repeatable."
        return Annotated[list[str] | None, typer.Option(help=text, **_SHOWN)]
    return Annotated[setting.kind | None, typer.Option(help=setting.help, **_SHOWN)]


_SHOWN: dict[str, Any] = {"show_default": False, "rich_help_panel": _PANEL}
