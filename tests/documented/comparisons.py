"""Find the tests that compare with the reference, and what each of them names.

A test compares where its own code, with the helpers of its file that it uses, computes with the
reference or reads what a release of it once computed. A name elsewhere in the file does not count.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

__all__ = ["comparing"]

ROOT = Path(__file__).parents[2]

REFERENCE = "@reference"
"""Word of code that uses the reference."""

Words = set[str]
"""What code names: ``name``, ``.attribute``, ``=keyword`` and ``'text``."""


MADE_BY = {
    "ContinuousBatchingManager": {
        ".init_continuous_batching",
        ".continuous_batching_context_manager",
    },
    "ContinuousMixin": {".init_continuous_batching", ".generate_batch"},
    "GenerationMixin": {".generate"},
    "Scheduler": {"'FIFOScheduler"},
    "BeamScorer": {".BeamSearchScorer"},
    "Constraint": {".PhrasalConstraint"},
}
"""Classes whose objects nobody makes by name: calls that make them or are theirs, subclasses."""


def comparing(name: str, module: str = "", owner: str = "") -> list[str]:
    """Return the test files with a comparison that names something; that of its module first.

    Args:
        name: A class, a function, a method or a parameter.
        module: Where it is defined.
        owner: The class of a method. A comparison of the method names the class as well.
    """
    asked = {f"'{name}", f".{name}"} if owner or name[0].isupper() else {f"'{name}", f"={name}"}
    asked |= set() if owner else {name}
    asked |= MADE_BY.get(name, set())
    beside = {owner, f".{owner}", f"'{owner}", *MADE_BY.get(owner, ())} if owner else asked
    found = [
        file
        for file, tests in _compared().items()
        if any(words & asked and words & beside for words in tests)
    ]
    parts = module.split(".")
    folder = "/".join(parts[1:-1] if parts[0] == "asyncgen" else parts[:-1])
    own = f"tests/{folder}/test_{parts[-1]}.py".replace("//", "/")
    folders = ("/parity/", "/generation/", "/snippets/")
    return sorted(
        found, key=lambda file: (file != own, *(one not in file for one in folders), file)
    )


@cache
def _compared() -> dict[str, list[Words]]:
    """For each file with comparisons: the words of each."""
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    helpers = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): words
        for path, tree in trees.items()
        if not path.stem.startswith("test_")
        and (_uses_reference(words := _words(tree)) or "fixtures" in path.parts)
    }
    found = {}
    for path, tree in trees.items():
        place = path.relative_to(ROOT)
        if place.parts[1] == "snippets":
            found[str(place)] = [_words(tree)]  # each is run with both libraries
        elif path.stem.startswith("test_") and place.parts[1] not in ("apps", "documented"):
            found[str(place)] = _in_comparisons(tree, helpers)
    return found


def _in_comparisons(tree: ast.Module, helpers: dict[str, Words]) -> list[Words]:
    """Return the words of each test in a file that uses the reference."""
    defined: dict[str, Words] = {}
    for node in tree.body:
        for name, words in _definitions(node, helpers).items():
            defined.setdefault(name, set()).update(words)
    reached = [_reached(name, defined) for name in defined if name.startswith("test_")]
    return [words for words in reached if _uses_reference(words)]


def _definitions(node: ast.stmt, helpers: dict[str, Words]) -> dict[str, Words]:
    """Return the names that a statement of a file binds, each with the words behind it."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name: _words(node)}
        case ast.Assign() | ast.AnnAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            bound = {name for target in targets for name in _words(target)}
            return {name: _words(node) for name in bound if name.isidentifier()}
        case ast.ImportFrom(module=str(module), names=names):
            return {
                alias.asname or alias.name: _imported(module, alias.name, helpers)
                for alias in names
            }
        case ast.Import(names=names):
            return {(alias.asname or alias.name).split(".")[0]: _words(node) for alias in names}
        case _:
            return {}


def _imported(module: str, name: str, helpers: dict[str, Words]) -> Words:
    """Return the words of a name that a file imports; scenes are run with both libraries."""
    words = {name} | _of_reference([module])
    for helper in {module, f"{module}.{name}"} & helpers.keys():
        words |= helpers[helper] if "fixtures" in helper else {REFERENCE}
    return words


def _reached(name: str, defined: dict[str, Words]) -> Words:
    """Collect the words of a function and of all that it uses in its file."""
    words: Words = set()
    seen, left = set[str](), [name]
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            words |= defined[one]
            left += [word for word in defined[one] if word in defined]
    return words


def _words(tree: ast.AST) -> Words:
    """Collect what code names."""
    words: Words = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name):
                words.add(name)
            case ast.Attribute(attr=name, value=value) if not isinstance(value, ast.Constant):
                words.add(f".{name}")
            case ast.keyword(arg=str(name)):
                words.add(f"={name}")
            case ast.Constant(value=str(text)):
                words.add(f"'{text}")
            case ast.ImportFrom(module=str(module), names=names):
                words |= {alias.name for alias in names}
                words |= _of_reference([module])
            case ast.Import(names=names):
                words |= _of_reference([alias.name for alias in names])
            case _:
                pass
    return words


def _of_reference(modules: list[str]) -> Words:
    """Mark imports of the reference, and of what it once computed."""
    used = any(
        module.split(".")[0] == "transformers" or "fixtures" in module.split(".")
        for module in modules
    )
    return {REFERENCE} if used else set()


def _uses_reference(words: Words) -> bool:
    return any(
        word in (REFERENCE, "'fixtures") or word.startswith("'transformers") for word in words
    )
