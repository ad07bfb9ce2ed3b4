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

__path__.append(f"{__path__[0]}/reference/paths")


@functools.cache
def _modules(package: str = __name__) -> dict[str, str]:
    """Return the module of each public name of a package, as its stub says.

    The module of a name that the stub takes from `asyncgen.reference.paths`, or from the package
    itself, is the name's own: code for the reference looks for names there.
    """
    import ast
    import pkgutil

    stub = pkgutil.get_data(package, "__init__.pyi")
    assert stub is not None, "every loader of packages can read their files"
    body = ast.parse(stub).body
    found = {
        alias.name: f"{package}.{alias.name}" if is_module else node.module
        for node in body
        if isinstance(node, ast.ImportFrom) and node.module
        for is_module in [
            node.module == package or node.module.startswith("asyncgen.reference.paths")
        ]
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
    if name == "__all__":
        names = [name for name, home in _modules().items() if home != f"{__name__}.{name}"]
        value: object = sorted([*names, "__version__"])
    elif name == "__version__":
        value = _read_version()
    else:
        value = _import(name)
    globals()[name] = value
    return value


def _import(name: str, package: str = __name__) -> object:
    """Import a name of a package's stub."""
    home = _modules(package).get(name)
    if home is None:
        raise _unknown(name, package)
    importlib.import_module("asyncgen.runtime.missing_numpy")  # a name may import torch
    module = importlib.import_module(home)
    return module if home == f"{package}.{name}" else getattr(module, name)


def _unknown(name: str, package: str) -> Exception:
    """Return the error of a name that is not public; names of other frameworks have their own."""
    if name.startswith(("TF", "Flax")):
        from asyncgen.reference.frameworks import replacement

        if (other := replacement(name)) in _modules():
            from asyncgen.errors import UnsupportedFrameworkError

            return UnsupportedFrameworkError(name, f"{__name__}.{other}")
    return AttributeError(f"module {package!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Name what can be asked for."""
    return sorted({*globals(), *_modules(), "__all__", "__version__"})
