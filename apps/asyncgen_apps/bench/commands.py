"""``asyncgen bench``: one command for each benchmark, made of its settings.

Part of the checkout only: a wheel has no benchmarks. Imports no torch.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from asyncgen_apps.bench.options import Json, Plot, bench_errors, check_plot, say
from asyncgen_apps.bench.peers.command import peers
from asyncgen_apps.bench.settings import BENCHES, Settings, SettingsError
from asyncgen_apps.cli.common_options import Debug, Threads
from asyncgen_apps.cli.errors import UserError
from asyncgen_apps.cli.help import App
from asyncgen_apps.cli.process import prepare_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field
    from pathlib import Path

COMMON = {"threads": Threads, "json": Json, "plot": Plot}
"""Options of every benchmark; ``debug`` is the last one."""
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def _command(kind: type[Settings]) -> Callable[..., None]:
    """Make the command of a benchmark: an option for each setting, and the common ones."""
    options = [one for one in fields(kind) if one.name != "threads"]  # type: ignore[arg-type]

    def run(
        *, threads: int | None, json: Path | None, plot: Path | None, debug: bool, **given: Any
    ) -> None:
        with bench_errors(debug):
            bench = _read(kind, options, given, plot)
            chosen = prepare_process(threads or _pinned_threads(kind) or None)
            # Loads torch, which reads what was just prepared.
            from asyncgen_apps.bench.report import emit

            module, _, name = kind.report.partition(":")
            report = getattr(importlib.import_module(f"asyncgen_apps.bench.{module}"), name)
            emit(report.of(replace(bench, threads=chosen), say), json, plot)  # type: ignore[type-var]

    hints = get_type_hints(kind)
    parameters = [_parameter(one, hints[one.name]) for one in options]
    parameters += [
        inspect.Parameter(name, KEYWORD, default=None, annotation=annotation)
        for name, annotation in COMMON.items()
    ]
    parameters.append(inspect.Parameter("debug", KEYWORD, default=False, annotation=Debug))
    run.__doc__ = kind.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _read(
    kind: type[Settings], options: list[Field[Any]], given: dict[str, Any], plot: Path | None
) -> Settings:
    """Turn options into settings, and check before any work that all needed modules are there.

    Raises:
        UserError: A module is missing, or an option has a wrong value.
    """
    check_plot(plot, *kind.needs)
    model = given["model"]
    if model is not None and not (model / "config.json").is_file():
        raise UserError(f"{model} holds no config.json: --model takes a checkpoint folder")
    try:
        bench = kind(**{one.name: _value(one, given[one.name]) for one in options})
        bench.check()
    except SettingsError as error:
        raise UserError(str(error)) from error
    return bench


def _value(option: Field[Any], given: Any) -> Any:
    """Return the value of a setting: plain strings and numbers, several of them as a tuple."""
    if isinstance(given, list):
        return tuple(map(option.metadata["read"] or _plain, given))
    return _plain(given)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value


def _pinned_threads(kind: type[Settings]) -> int:
    """Count the cores that a server has beside its client; 0 where all cores are used."""
    if not kind.is_pinned:
        return 0
    from asyncgen_apps.bench.cores import cores

    return len(cores()[0])


def _choice(name: str, values: tuple[str, ...]) -> Any:
    """Make the enumeration of the values that an option takes."""
    make: Any = StrEnum
    return make(name, {value: value for value in values})


def _parameter(option: Field[Any], hint: Any) -> inspect.Parameter:
    """Describe a setting to typer as a parameter of the command."""
    about = option.metadata
    is_list = get_args(hint)[-1:] == (...,)
    kind: Any = get_args(hint)[0] if is_list else hint
    if about["choices"]:
        kind = _choice(option.name, about["choices"])
    elif about["read"]:
        kind = str
    typed = typer.Option(*about["names"], min=about["min"], help=about["help"])
    return inspect.Parameter(
        option.name,
        KEYWORD,
        default=list(about["default"]) if is_list else about["default"],
        annotation=Annotated[list[kind] if is_list else kind, typed],
    )


bench = App(help="Measure speed and smoothness beside others.", no_args_is_help=True)
for _name, _kind in BENCHES.items():
    bench.command(_name)(_command(_kind))
bench.command("peers")(peers)
