"""The map in the README is the one that counts: imports run downwards, files have their tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the ground up. A module may import from its own layer and from those before it.
LAYERS = (
    ("streamers",),
    (
        "asyncgen.errors",
        "asyncgen.types",
        "asyncgen.progress",
        "asyncgen.hub",
        "asyncgen.native",
        "asyncgen.recipes",
        "asyncgen.chat_template",
        "asyncgen.batch_encoding",
        "asyncgen.tokenizer_files",
        "asyncgen.tokenizer",
        "asyncgen.transfer",
        "asyncgen.vocabulary",
        "asyncgen.weights",
    ),
    (
        "asyncgen.generation.config",
        "asyncgen.generation.logits",
        "asyncgen.generation.outputs",
        "asyncgen.generation.stopping",
        "asyncgen.generation.watermarking",
    ),
    ("asyncgen.cache", "asyncgen.models"),
    ("asyncgen.generation.strategies", "asyncgen.generation.generate"),
    ("asyncgen.engine",),
    ("asyncgen.modeling", "asyncgen.seq2seq", "asyncgen.pretrained", "asyncgen.auto"),
    ("asyncgen.opening", "asyncgen.stream", "asyncgen.llm"),
    ("asyncgen",),
    ("asyncgen_apps",),
)
PACKAGES = {"asyncgen.generation"}  # empty inits: no layer of their own

FOLDERS = {"streamers": ROOT, "asyncgen": ROOT, "asyncgen_apps": ROOT / "apps"}
"""Where each package lies."""


def _sources() -> list[Path]:
    return sorted(
        path for package, folder in FOLDERS.items() for path in (folder / package).rglob("*.py")
    )


def _module(path: Path) -> str:
    path = path.relative_to(ROOT)
    parts = path.with_suffix("").parts[path.parts[0] == "apps" :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _layer(module: str) -> int:
    """The layer with the longest prefix of this module's name."""
    best, rank = "", -1
    for number, names in enumerate(LAYERS):
        for name in names:
            if (module == name or module.startswith(f"{name}.")) and len(name) > len(best):
                best, rank = name, number
    if best == "asyncgen" and module != "asyncgen":
        raise AssertionError(f"{module} is in no layer: name it in the map")
    return rank


def _imports(path: Path) -> set[str]:
    """Every module of ours that a file imports, also inside functions and for types only."""
    modules = {_module(other) for other in _sources()}
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                found.add(deeper if deeper in modules else node.module)
    return {name for name in found if name.split(".")[0] in FOLDERS}


@pytest.mark.parametrize("path", _sources(), ids=_module)
def test_imports_run_downwards(path: Path) -> None:
    module = _module(path)
    if module in PACKAGES:
        return
    rank = _layer(module)
    upwards = {name for name in _imports(path) if name not in PACKAGES and _layer(name) > rank}
    assert not upwards


def test_apps_import_only_public_names() -> None:
    private: dict[str, set[str]] = {}
    for path in _sources():
        if _module(path).split(".")[0] == "asyncgen_apps":
            deep = {
                name
                for name in _imports(path)
                if name.startswith("asyncgen.") or name.startswith("streamers.")
            }
            if deep:
                private[_module(path)] = deep
    assert not private


def test_streamers_stand_alone() -> None:
    for path in _sources():
        if _module(path).split(".")[0] == "streamers":
            assert {name.split(".")[0] for name in _imports(path)} <= {"streamers"}


def test_every_source_file_has_its_test() -> None:
    missing = []
    for path in _sources():
        if path.name == "__init__.py" and not re.search(
            r"^\s*(def|class|[A-Z_]+\b.*=)", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            continue
        relative = path.relative_to(ROOT)
        parts = relative.parts[1:] if relative.parts[0] == "asyncgen" else relative.parts
        parts = tuple(part for part in parts if part != "asyncgen_apps")
        name = "init" if path.name == "__init__.py" else path.stem
        if not (ROOT / "tests" / Path(*parts[:-1]) / f"test_{name}.py").exists():
            missing.append(str(relative))
    assert not missing


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in _sources()
        if (lines := path.read_text(encoding="utf-8").count("\n")) > 600
    }
    assert not long
