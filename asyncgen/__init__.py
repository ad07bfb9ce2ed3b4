"""One library that turns a local language model into an async stream of text.

    async with asyncgen.AsyncLLM("demo") as llm:
        async for text in llm.stream("Once upon a time"):
            print(text, end="", flush=True)

The public names are written once, in ``__init__.pyi``, where editors read them. Each is imported
when it is first asked for, so that ``import asyncgen`` alone costs nothing and loads no torch.
"""

from __future__ import annotations

import functools
import importlib


@functools.cache
def _modules() -> dict[str, str]:
    """Return the module of each public name, as the stub says."""
    import ast
    import pkgutil

    stub = pkgutil.get_data(__name__, "__init__.pyi")
    assert stub is not None, "every loader of packages can read their files"
    body = ast.parse(stub).body
    found = {
        alias.name: node.module
        for node in body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    # A class that a family declares, and nobody writes down.
    made = {
        node.name: "asyncgen.reference.family_classes"
        for node in body
        if isinstance(node, ast.ClassDef)
    }
    return {**found, **made}


def _read_version() -> str:
    """The version that is installed; looked up late, because that takes longer than the rest."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("asyncgen")
    except PackageNotFoundError as error:
        raise AttributeError(
            "asyncgen has no version because it is not installed; run `pip install -e .`"
        ) from error


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    value: object
    if name == "__all__":
        value = sorted([*_modules(), "__version__"])
    elif name == "__version__":
        value = _read_version()
    elif name in _modules():
        value = getattr(importlib.import_module(_modules()[name]), name)
    else:
        raise AttributeError(f"module 'asyncgen' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Name what can be asked for."""
    return sorted({*globals(), *_modules(), "__all__", "__version__"})
