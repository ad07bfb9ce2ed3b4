"""Print ``--help`` at any width: each option's text beside it, or below it where that is narrow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WIDE = 100
"""Columns from which the text of an option stands beside its name."""

NAMES = 36
"""Columns of the names then; the text of a longer one begins a line below."""

PANELS = {
    "Model": (
        "device dtype quantize kv_cache_dtype threads revision token follow_links "
        "special_tokens_in_content tool_format reasoning_format"
    ).split(),
    "Who may connect": (
        "api_key api_key_file allow_anonymous cors_origin origin allowed_host trusted_proxy "
        "allow_priority priority_key open_metrics open_docs"
    ).split(),
    "Limits": (
        "max_requests max_running max_queue max_connections max_body max_message max_prompt "
        "chat_max_body chat_max_memory prepare_seconds head_seconds open_seconds replay"
    ).split(),
    "Connections and the end": (
        "ping_seconds heartbeat_seconds send_seconds grace_seconds notice drain drain_seconds "
        "resume_secret_file"
    ).split(),
}
"""Options that stand together behind the others, under a heading of their own."""

_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_NUMBER = r"(-?[\d.]+)"
_RANGES = (
    (re.compile(rf"{_NUMBER}<=x<={_NUMBER}"), r"\1 to \2"),
    (re.compile(rf"x>={_NUMBER}"), r"\1 or more"),
    (re.compile(rf"x<={_NUMBER}"), r"at most \1"),
)
_TYPE = re.compile(r"<(?:list\[)?(\w+)(?: range)?\]?>")
"""What typer calls a type; that it has a range, or is repeatable, is said by the text."""


def _records(command: TyperCommand | TyperGroup, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return the names and the text of every parameter and command, by their heading."""
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for one in command.get_params(context):
        record = one.get_help_record(context)
        if record is None:
            continue
        kind = "Arguments" if one.param_type_name == "argument" else "Options"
        panel = getattr(one, "rich_help_panel", None) or _PANEL_OF.get(str(one.name), kind)
        names, (text, facts) = _TYPE.sub(r"<\1>", record[0]), _parted(record[1])
        panels.setdefault(panel, []).append((names, "\n".join(filter(None, (text, facts)))))
    if isinstance(command, TyperGroup):
        found = ((name, command.get_command(context, name)) for name in command.commands)
        panels["Commands"] = [
            (name, each.get_short_help_str(1000))
            for name, each in found
            if each is not None and not each.hidden
        ]
    return panels


def _parted(help_text: str) -> tuple[str, str]:
    """Part the text of an option from what typer says in brackets behind it, in plain words."""
    text, bracket, facts = help_text.rpartition("  [")
    if not bracket and help_text.startswith("["):
        bracket, facts = "[", help_text[1:]
    if not bracket:
        return help_text, ""
    for pattern, words in _RANGES:
        facts = pattern.sub(words, facts)
    return text, f"[{facts}"


def _beside(console: Console, names: str, text: str) -> Iterable[Text]:
    """Yield the lines of an option with its text beside its names."""
    lines = Text(text.replace("\n", " ")).wrap(console, console.width - NAMES - 2)
    head = Text.assemble("  ", (names, "cyan"))
    if len(head) > NAMES - 2:
        yield head
        head = Text("")
    for line in lines:
        line.rstrip()
        yield Text.assemble(head, " " * (NAMES - len(head)), line)
        head = Text("")


def _below(console: Console, names: str, text: str) -> Iterable[Text]:
    """Yield the lines of an option with its text below its names."""
    for said, indent, style in ((names, 2, "cyan"), (text, 6, "")):
        for line in Text(said, style).wrap(console, console.width - indent):
            line.rstrip()
            yield Text.assemble(" " * indent, line)


def _print_help(command: TyperCommand | TyperGroup, context: Any) -> None:
    """Print what typer's help has, one name a line."""
    console = Console(highlight=False)
    shown = _beside if console.width >= WIDE else _below
    words = " ".join(command.collect_usage_pieces(context))
    console.print(Text.assemble(("Usage: ", "bold"), f"{context.command_path} {words}"))
    console.print()
    console.print(Text(re.sub(r"(?<=\S)\n(?=\S)", " ", command.help or "")))
    for panel, records in _records(command, context).items():
        if records:
            console.print(Text(f"\n{panel}", "bold"))
        for names, text in records:
            for line in shown(console, names, text):
                console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _untyped(parameters: list[Any]) -> list[Any]:
    """Have switches show no type: they take no value."""
    for one in parameters:
        if getattr(one, "is_flag", False):
            one.metavar = ""
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _untyped(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _print_help(self, ctx)


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _untyped(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _print_help(self, ctx)


class App(typer.Typer):
    """Typer application whose help is readable at any width."""

    def __init__(self, **options: Any) -> None:
        """Take the options of ``typer.Typer``."""
        super().__init__(cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Take the options of ``typer.Typer.command``."""
        return super().command(name, cls=_Command, **options)
