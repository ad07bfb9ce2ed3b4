"""Tests of the package's front: what is public, and what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import asyncgen
from tests.cases import for_each
from tests.test_architecture import PATHS

PROBE = """
import sys, time
before = set(sys.modules)
start = time.process_time()
import {package}
seconds = time.process_time() - start
heavy = {{"torch", "numpy", "tokenizers", "safetensors", "jinja2", "huggingface_hub", "tqdm"}}
print(seconds, *sorted(heavy & (set(sys.modules) - before)))
"""


@for_each("name", sorted({*asyncgen.__all__} - {"__version__"}))
def test_every_name_resolves(name: str) -> None:
    value = getattr(asyncgen, name)
    assert value is not None
    assert getattr(asyncgen, name) is value


def test_version_is_that_of_the_distribution() -> None:
    try:
        installed = metadata.version("asyncgen")
    except metadata.PackageNotFoundError:
        with pytest.raises(AttributeError, match="it is not installed; run `pip install -e .`"):
            asyncgen.__version__  # noqa: B018
    else:
        assert asyncgen.__version__ == installed


def test_names_are_sorted_and_unique() -> None:
    assert list(asyncgen.__all__) == sorted(set(asyncgen.__all__))


def test_names_are_listed() -> None:
    assert set(asyncgen.__all__) <= set(dir(asyncgen))


STUB = Path(asyncgen.__file__).with_suffix(".pyi")


def test_the_front_is_small() -> None:
    """Names that most programs need stand before the documented names."""
    body = ast.parse(STUB.read_text(encoding="utf-8")).body
    behind = next(at for at, node in enumerate(body) if isinstance(node, ast.AnnAssign))
    front = [node for node in body[:behind] if isinstance(node, ast.ImportFrom)]
    assert 20 <= sum(len(node.names) for node in front) <= 30


def test_the_stub_writes_each_name_once_and_exports_it() -> None:
    body = ast.parse(STUB.read_text(encoding="utf-8")).body
    aliases = [
        alias
        for node in body
        if isinstance(node, ast.ImportFrom) and node.module not in ("asyncgen", PATHS)
        for alias in node.names
    ]
    assert all(alias.asname == alias.name for alias in aliases), "without `as` it is not exported"
    names = [alias.name for alias in aliases]
    names += [node.name for node in body if isinstance(node, ast.ClassDef)]
    assert len(set(names)) == len(names)
    assert {*names, "__version__"} == set(asyncgen.__all__)


def test_the_stub_has_the_class_of_every_family() -> None:
    """Families declare the names; editors and type checkers read them here."""
    from asyncgen.reference.family_classes import CLASSES, TOKENIZERS

    body = ast.parse(STUB.read_text(encoding="utf-8")).body
    written = {
        node.name: ast.unparse(node.bases[0]) for node in body if isinstance(node, ast.ClassDef)
    }
    made = CLASSES | TOKENIZERS
    assert written == {name: kind.__mro__[1].__name__ for name, kind in made.items()}
    assert all(kind.__module__ == "asyncgen" for kind in made.values())


def test_star_import_brings_the_public_names() -> None:
    found: dict[str, object] = {}
    exec("from asyncgen import *", found)
    assert set(asyncgen.__all__) <= set(found)


def test_the_front_is_short() -> None:
    trees = [
        ast.parse(file.read_text(encoding="utf-8")) for file in (STUB, STUB.with_suffix(".py"))
    ]
    statements = [
        node
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt | ast.alias) and not isinstance(node, ast.ClassDef)
    ]
    assert len(statements) <= 445, "statements and imported names, but the families' classes"


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'asyncgen' has no attribute 'Nothing'"):
        asyncgen.Nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("package", ["asyncgen", "streamers", "asyncgen.errors"])
def test_import_is_light(package: str) -> None:
    script = PROBE.format(package=package)
    results = [
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(3)
    ]
    assert min(float(seconds) for seconds, *_ in results) < 0.2
    assert all(heavy == [] for _, *heavy in results)


@pytest.mark.gate
@for_each("first", ["AsyncLLM", "load_tokenizer", "LogitsProcessorList"])
def test_no_warning_where_numpy_is_missing(first: str) -> None:
    script = f"""
import sys
sys.modules["numpy"] = None
import asyncgen
asyncgen.{first}
import torch
print(torch.tensor([1]))
"""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("tensor([1])\n", "")
