"""The map in the README is the one that counts: imports run downwards, rooms have their tests."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the ground up. A module may import from its own layer and from those before it.
LAYERS = (
    ("streamers",),
    (
        "asyncgen.errors",
        "asyncgen.embedding_layers",
        "asyncgen.embedding_settings",
        "asyncgen.formats",
        "asyncgen.guard",
        "asyncgen.types",
        "asyncgen.progress",
        "asyncgen.hub",
        "asyncgen.memory",
        "asyncgen.native",
        "asyncgen.recipes",
        "asyncgen.saving",
        "asyncgen.chat_content",
        "asyncgen.chat_formats",
        "asyncgen.chat_template",
        "asyncgen.template_limits",
        "asyncgen.batch_encoding",
        "asyncgen.token_bounds",
        "asyncgen.tokenizer_files",
        "asyncgen.tokenizer",
        "asyncgen.structured",
        "asyncgen.transfer",
        "asyncgen.vocabulary",
        "asyncgen.weight_map",
        "asyncgen.checkpoint",
        "asyncgen.mxfp4",
        "asyncgen.packed",
        "asyncgen.tensor_reader",
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
    (
        "asyncgen.formats.gguf.config",
        "asyncgen.formats.gguf.delta",
        "asyncgen.formats.gguf.rules",
        "asyncgen.load_options",
        "asyncgen.loading",
        "asyncgen.forward_arguments",
        "asyncgen.modeling",
        "asyncgen.seq2seq",
        "asyncgen.faces",
        "asyncgen.pretrained",
        "asyncgen.auto",
        "asyncgen.pipelines",
        "asyncgen.quantizing",
    ),
    (
        "asyncgen.fingerprint",
        "asyncgen.opening",
        "asyncgen.preparing",
        "asyncgen.pace",
        "asyncgen.sample_builder",
        "asyncgen.waiting",
        "asyncgen.answer",
        "asyncgen.embedding",
        "asyncgen.stream",
        "asyncgen.together",
        "asyncgen.face",
        "asyncgen.llm",
    ),
    ("asyncgen",),
    ("asyncgen_apps",),
)
PACKAGES = {"asyncgen.generation"}  # empty inits: no layer of their own

FOLDERS = {"streamers": ROOT, "asyncgen": ROOT, "asyncgen_apps": ROOT / "apps"}
"""Where each package lies."""


@cache
def _sources() -> tuple[Path, ...]:
    paths = (
        path for package, folder in FOLDERS.items() for path in (folder / package).rglob("*.py")
    )
    return tuple(sorted(paths))


@cache
def _modules() -> frozenset[str]:
    return frozenset(_module(path) for path in _sources())


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


@cache
def _imports(path: Path) -> frozenset[str]:
    """Every module of ours that a file imports, also inside functions and for types only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                found.add(deeper if deeper in _modules() else node.module)
    return frozenset(name for name in found if name.split(".")[0] in FOLDERS)


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


def test_every_room_has_its_tests() -> None:
    """What lies in ``asyncgen/engine/lane`` is tested in ``tests/engine/lane``, and so on."""
    without = set()
    for path in _sources():
        if not ast.parse(path.read_text(encoding="utf-8")).body[1:]:
            continue  # at most a docstring
        parts = path.relative_to(ROOT).parent.parts
        room = Path(*(part for part in parts if part not in ("asyncgen", "asyncgen_apps")))
        if not any((ROOT / "tests" / room).glob("test_*.py")):
            without.add(str(room))
    assert not without


def test_every_test_lies_where_pytest_looks() -> None:
    """No file is named as one of tests and has none; none lies in a file that is not collected."""
    wrong = []
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {getattr(node, "name", "") for node in tree.body}
        has_tests = any(name.startswith(("test_", "Test")) for name in names)
        if has_tests != path.name.startswith("test_"):
            wrong.append(str(path.relative_to(ROOT)))
    assert not wrong


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in _sources()
        if (lines := path.read_text(encoding="utf-8").count("\n")) > 600
    }
    assert not long
