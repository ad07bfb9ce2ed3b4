"""Options that several commands share, the choice of a model and the settings among them."""

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console

from asyncgen_apps.cli.errors import USAGE, one_line_errors
from asyncgen_apps.cli.render import error_line
from asyncgen_apps.cli.settings import SETTINGS, Setting, SettingError, Settings
from asyncgen_apps.cli.source import Source

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
FollowLinks = Annotated[
    bool | None,
    typer.Option(
        "--follow-links", help="Read what links in the model's folder lead to, outside of it."
    ),
]
SpecialTokensInContent = Annotated[
    str | None,
    typer.Option(
        help="text: control tokens in messages stay text; allow, if not given: they are tokens."
    ),
]
ToolFormat = Annotated[
    str | None,
    typer.Option(help="Format of the model's tool calls, or none; found if not given."),
]
ReasoningFormat = Annotated[
    str | None, typer.Option(help="Format of its reasoning, or none; found if not given.")
]
Stats = Annotated[bool, typer.Option("--stats/--no-stats", help="Print a line of statistics.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]

_PANEL = "Generation (the model decides what is not given)"


def text_of(prompt: str | None) -> str | None:
    """Return the prompt of a command: the argument, or the input of a pipe.

    Args:
        prompt: The argument; ``-`` reads standard input, and so does ``None`` if it is a pipe.

    Returns:
        The text as it stands, ``None`` if there is neither.
    """
    if prompt is None and sys.stdin.isatty():
        return None
    return sys.stdin.read() if prompt in (None, "-") else prompt


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command one option for each setting, and pass them on as its ``settings``.

    Args:
        command: A typer command with a parameter ``settings: Settings``.

    Returns:
        The command as typer sees it, with the options in place of ``settings``.
    """

    def run(**arguments: Any) -> None:
        settings = Settings()
        for setting in SETTINGS:
            value = arguments.pop(setting.name)
            if value in (None, []):
                continue
            try:
                settings.set(setting.name, value, "command line")
            except SettingError as error:
                error_line(Console(stderr=True), str(error))
                raise typer.Exit(USAGE) from None
        command(**arguments, settings=settings)

    own = [one for one in _parameters(command) if one.name != "settings"]
    return _shaped(run, command, [*own, *(_keyword(s.name, _option(s)) for s in SETTINGS)])


def with_served_source(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of :func:`with_chat_source`, and the formats of the answers."""
    return with_source(command, FORMAT_OPTIONS | CHAT_OPTIONS)


def with_chat_source(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of :func:`with_source`, and those of models that get messages."""
    return with_source(command, CHAT_OPTIONS)


def with_source(
    command: Callable[..., None], options: Mapping[str, Any] | None = None
) -> Callable[..., None]:
    """Give a command the options that choose a model, and pass them on as its ``source``.

    Args:
        command: A typer command with the parameters ``source: Source`` and ``debug``.
        options: Options besides ``--model``; :data:`SOURCE_OPTIONS` if not given.

    Returns:
        The command as typer sees it: ``--model`` in place of ``source``, and the other options
        before ``debug``.
    """
    options = options or SOURCE_OPTIONS

    def run(**arguments: Any) -> None:
        source = Source(**{name: arguments.pop(name) for name in ("model", *options)})
        with one_line_errors(arguments["debug"]):
            from asyncgen import AsyncLLM

            AsyncLLM.check_source(source.model)
        command(**arguments, source=source)

    shown = []
    for one in _parameters(command):
        if one.name == "debug":
            shown += [_keyword(name, annotation) for name, annotation in options.items()]
        shown.append(_keyword("model", Model, "demo") if one.name == "source" else one)
    return _shaped(run, command, shown)


SOURCE_OPTIONS = {
    "device": Device,
    "dtype": Dtype,
    "quantize": Quantize,
    "kv_cache_dtype": KVCacheDtype,
    "threads": Threads,
    "revision": Revision,
    "token": Token,
    "follow_links": FollowLinks,
}
"""Options of every :class:`Source` besides ``--model``."""

CHAT_OPTIONS = {**SOURCE_OPTIONS, "special_tokens_in_content": SpecialTokensInContent}
"""Options of a :class:`Source` that is given messages."""

FORMAT_OPTIONS = {"tool_format": ToolFormat, "reasoning_format": ReasoningFormat}
"""Options of a :class:`Source` that is served."""


def _parameters(command: Callable[..., None]) -> list[inspect.Parameter]:
    """Return the parameters of a command with their evaluated annotations."""
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    return [one.replace(annotation=hints[name]) for name, one in parameters.items()]


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """Make a parameter that is passed by name."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _shaped(
    run: Callable[..., None], command: Callable[..., None], shown: list[inspect.Parameter]
) -> Callable[..., None]:
    """Let typer see ``run`` as the command with these parameters."""
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    shown = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in shown]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in shown}
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
