"""The map in the README is the one that counts: imports run downwards, rooms have their tests."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the ground up. A module may import from its own room and from those before it.
ROOMS = (
    "streamers",
    "asyncgen.errors",
    "asyncgen.types",
    "asyncgen.runtime",
    "asyncgen.native",
    "asyncgen.families",
    "asyncgen.cache",
    "asyncgen.models",
    "asyncgen.checkpoints",
    "asyncgen.text",
    "asyncgen.structured",
    "asyncgen.generation",
    "asyncgen.engine",
    "asyncgen.reference",
    "asyncgen.llm",
    "asyncgen",
    "asyncgen_apps.engine",
    "asyncgen_apps.metrics",
    "asyncgen_apps.serving",
    "asyncgen_apps",
)

PATHS = "asyncgen.reference.paths"
"""Room of modules that only bring names of the front, under paths of the reference."""

ENGINE = (
    {"metrics"},
    {"sampling"},
    {"kv_cache"},
    {"scheduling"},
    {"options"},
    {"requests"},
    {"output"},
    {"batch"},
    {"lane"},
    {"core"},
    {"setup"},
    {"pauses", "commands"},
    {"thread"},
)
"""Folders and modules of ``asyncgen.engine`` in levels, from the ground up."""

FOLDERS = {"streamers": ROOT, "asyncgen": ROOT, "asyncgen_apps": ROOT / "apps"}
"""Where each package lies."""


WALL_CLOCK = {
    "asyncgen.generation.stopping.criteria",  # `initial_timestamp`, as documented
    "asyncgen.text.chat_template",  # the date that templates ask for
    "asyncgen_apps.openai_http.bodies",  # `created`
    "asyncgen_apps.openai_http.routes",
    "asyncgen_apps.websocket.resume_tokens",  # tokens outlive the process
}
"""Modules that read the clock that people set, for timestamps; time that passes is monotonic."""


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


def _room(module: str) -> str:
    """Name the room of a module: a folder of ``asyncgen``, a shared one of the apps, a package."""
    if module == "asyncgen.generation" or module.startswith(PATHS):
        return "asyncgen"
    parts = module.split(".")
    folder = ".".join(parts[:2])
    room = folder if parts[0] == "asyncgen" or folder in ROOMS else parts[0]
    if room not in ROOMS:
        raise AssertionError(f"{module} lies in no room: add {room} to the map")
    return room


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


def test_imports_run_downwards() -> None:
    upwards = {
        f"{_module(path)} imports {name}"
        for path in _sources()
        for name in _imports(path)
        if ROOMS.index(_room(name)) > ROOMS.index(_room(_module(path)))
    }
    assert not upwards


def test_imports_of_the_engine_run_downwards() -> None:
    """Its folders are rooms as well: none imports from a level above its own."""
    level = {name: number for number, names in enumerate(ENGINE) for name in names}
    upwards = set()
    for path in _sources():
        own = _module(path).split(".")
        if own[:2] == ["asyncgen", "engine"] and own[2:]:
            for name in _imports(path):
                other = name.split(".")
                if other[:2] == own[:2] and level[other[2]] > level[own[2]]:
                    upwards.add(f"{'.'.join(own)} imports {name}")
    assert not upwards


def test_the_root_is_the_map() -> None:
    """No module lies flat in ``asyncgen`` but what every room shares."""
    flat = {path.name for path in (ROOT / "asyncgen").glob("*.py")}
    assert flat == {"__init__.py", "errors.py", "types.py"}


def test_modules_of_names_hold_nothing_else() -> None:
    """They import names of other modules, and no module of ours imports them."""
    for path in _sources():
        if _module(path).startswith(PATHS):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            assert all(isinstance(node, ast.ImportFrom) for node in body[1:]), path
        assert not any(each.startswith(PATHS) for each in _imports(path)), path


def test_the_root_of_the_applications_is_a_map() -> None:
    """Every module of the applications lies in a room; shared rooms stand below the servers."""
    flat = {path.name for path in (ROOT / "apps" / "asyncgen_apps").glob("*.py")}
    assert flat == {"__init__.py"}


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


def test_time_that_passes_is_not_the_wall_clocks() -> None:
    readers = {_module(path) for path in _sources() if _reads_wall_clock(path)}
    assert readers == WALL_CLOCK


def _reads_wall_clock(path: Path) -> bool:
    calls = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            if ast.unparse(node).replace("datetime.datetime", "datetime") in calls:
                return True
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            if {alias.name for alias in node.names} & {"time", "time_ns"}:
                return True
    return False


def test_streamers_stand_alone() -> None:
    for path in _sources():
        if _module(path).split(".")[0] == "streamers":
            assert {name.split(".")[0] for name in _imports(path)} <= {"streamers"}


def test_every_room_has_its_tests() -> None:
    """Code in ``asyncgen/engine/lane`` has its tests in ``tests/engine/lane``, and so on."""
    without = set()
    for path in _sources():
        if not ast.parse(path.read_text(encoding="utf-8")).body[1:]:
            continue  # at most a docstring
        if _module(path).startswith(PATHS):
            continue  # `tests/documented/test_paths.py`
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


QUESTIONS = ("What", "How", "Whether", "Which", "Where", "When", "Who", "Why", "If")
"""Words that ask where a docstring should say what its code does."""

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@pytest.mark.parametrize("tested", [False, True], ids=["sources", "tests"])
def test_docstrings_say_and_do_not_ask(tested: bool) -> None:
    paths = (ROOT / "tests").rglob("*.py") if tested else _sources()
    first = [
        (ast.get_docstring(node) or "").split(" ")[0].strip(",.:")
        for path in paths
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, DOCUMENTED)
    ]
    asking = sum(word in QUESTIONS for word in first)
    assert asking < sum(map(bool, first)) / 100
