"""The stub of the compiled module lists all of it, and nothing else."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

from asyncgen import native

kernels: Any = pytest.importorskip("asyncgen.native._kernels", exc_type=ImportError)
STUB = Path(native.__file__).with_name("_kernels.pyi")


def parameters(function: ast.FunctionDef) -> list[tuple[str, str]]:
    """Names and kinds, without the object or class itself."""
    arguments = function.args
    kinds = inspect.Parameter
    return [
        *((one.arg, kinds.POSITIONAL_ONLY.name) for one in arguments.posonlyargs),
        *((one.arg, kinds.POSITIONAL_OR_KEYWORD.name) for one in arguments.args),
        *((one.arg, kinds.KEYWORD_ONLY.name) for one in arguments.kwonlyargs),
    ]


def described() -> dict[str, list[tuple[str, str]]]:
    """Read names and parameters of the stub; a constructor has its type's name."""
    found = {}
    for item in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(item, ast.FunctionDef):
            found[item.name] = parameters(item)
        elif isinstance(item, ast.ClassDef):
            for method in item.body:
                assert isinstance(method, ast.FunctionDef)
                is_new = method.name == "__new__"
                name = item.name if is_new else f"{item.name}.{method.name}"
                found[name] = parameters(method)[1:]
    return found


def compiled() -> dict[str, list[tuple[str, str]]]:
    """Read names and parameters of the module."""
    found = {}
    for name, item in vars(kernels).items():
        if name.startswith("__"):
            continue
        found[name] = _signature(item)
        if isinstance(item, type):
            for method in vars(item):
                if not method.startswith("__"):
                    found[f"{name}.{method}"] = _signature(getattr(item, method))[1:]
    return found


def _signature(item: Any) -> list[tuple[str, str]]:
    return [(one.name, one.kind.name) for one in inspect.signature(item).parameters.values()]


def test_the_stub_is_complete() -> None:
    assert described() == compiled()
