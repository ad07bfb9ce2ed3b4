"""Print ``--help`` at any width: in a narrow terminal, each option has its text below it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


WIDE = 100
"""Columns that typer's table needs to show every name and word in one piece."""


def _listing(command: TyperCommand | TyperGroup, context: Any) -> Iterator[Text | Padding]:
    """Return the content of typer's help, one name a line."""
    words = " ".join(command.collect_usage_pieces(context))
    yield Text.assemble(("Usage: ", "bold"), f"{context.command_path} {words}")
    paragraphs = re.sub(r"(?<=\S)\n(?=\S)", " ", command.help or "")
    yield Padding(Text(paragraphs), (1, 0, 0, 0), expand=False)
    panels: dict[str, list[tuple[str, str]]] = {}
    for one in command.get_params(context):
        record = one.get_help_record(context)
        kind = "Arguments" if one.param_type_name == "argument" else "Options"
        if record is not None:
            panel = getattr(one, "rich_help_panel", None) or kind
            panels.setdefault(panel, []).append((record[0], record[1].replace("  [", "\n[")))
    if isinstance(command, TyperGroup):
        found = ((name, command.get_command(context, name)) for name in command.commands)
        panels["Commands"] = [
            (name, each.get_short_help_str(1000))
            for name, each in found
            if each is not None and not each.hidden
        ]
    for panel, records in panels.items():
        yield Padding(Text(panel, "bold"), (1, 0, 0, 0), expand=False)
        for names, text in records:
            yield Padding(Text(names, "cyan"), (0, 0, 0, 2), expand=False)
            yield Padding(Text(text), (0, 0, 0, 6), expand=False)


def _print_help(
    command: TyperCommand | TyperGroup, context: Any, table: Callable[[], None]
) -> None:
    console = Console(highlight=False)
    if console.width >= WIDE:
        return table()
    for part in _listing(command, context):
        console.print(part)


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
        _print_help(self, ctx, lambda: super(_Command, self).format_help(ctx, formatter))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _untyped(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _print_help(self, ctx, lambda: super(_Group, self).format_help(ctx, formatter))


class App(typer.Typer):
    """Typer application whose help is readable at any width."""

    def __init__(self, **options: Any) -> None:
        """Take the options of ``typer.Typer``."""
        super().__init__(cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Take the options of ``typer.Typer.command``."""
        return super().command(name, cls=_Command, **options)
