"""No two modules import each other: the graph of imports has no cycle, types included."""

from __future__ import annotations

from functools import cache
from graphlib import CycleError, TopologicalSorter

from tests.test_architecture import PATHS, ROOT, _imports, _module, _sources


@cache
def _graph() -> dict[str, frozenset[str]]:
    """List the imports of each module, also those for types only and inside functions.

    An import of a package is one of its ``__init__``. The stub of the package's front counts as
    the front: it is what is imported, late.
    """
    modules = {_module(path): path for path in _sources()}
    graph = {name: _imports(path) & modules.keys() - {name} for name, path in modules.items()}
    late = _imports(ROOT / "asyncgen" / "__init__.pyi") - {"asyncgen", "asyncgen.generation"}
    graph["asyncgen"] |= {each for each in late if not each.startswith(PATHS)}
    return graph


def test_no_modules_import_each_other() -> None:
    try:
        TopologicalSorter(_graph()).prepare()
    except CycleError as error:
        raise AssertionError(f"a cycle of imports: {' -> '.join(error.args[1])}") from None


def test_the_graph_is_whole() -> None:
    """Late imports and imports for types are in the graph."""
    graph = _graph()
    assert "asyncgen.llm.llm" in graph["asyncgen"], "in the stub"
    assert "asyncgen.generation.config" in graph["asyncgen.llm.engine_handle"], "for types"
    assert "asyncgen.reference.load_model" in graph["asyncgen.llm.opening"], "inside a function"
    assert "streamers.errors" in set().union(*graph.values())
