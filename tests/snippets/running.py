"""Running the snippets with one library or another.

What newer releases of the reference have given up was run with an older one, from the root of the
repository, which wrote ``gone.json``::

    pip install torch "transformers==4.49.0"
    python -m tests.snippets.running
"""

from __future__ import annotations

import ast
import json
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.snippets.folders import save_all

IMPORT = "from transformers import "
GONE = Path(__file__).with_name("gone.py")
RECORDED = GONE.with_suffix(".json")
FILES = [
    GONE.with_name(f"{name}.py")
    for name in ("decoding", "memory", "settings", "steering", "texts", "translation")
]


def names(path: Path) -> list[str]:
    """The snippets of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def load(path: Path, library: str) -> ModuleType:
    """A file with another library in its import line, and nothing else changed."""
    source = path.read_text("utf-8")
    assert source.count("transformers") == source.count(IMPORT) == 1
    module = ModuleType(f"{library}_{path.stem}")
    changed = source.replace(IMPORT, f"from {library} import ")
    exec(compile(changed, path, "exec"), vars(module))
    return module


def record() -> dict[str, Any]:
    """Return the output, in an older release, of snippets that newer ones cannot run."""
    module = load(GONE, "transformers")
    with tempfile.TemporaryDirectory() as folder:
        hub = save_all(Path(folder))
        return {name: getattr(module, name)(hub) for name in names(GONE)}


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(record(), indent=1) + "\n", encoding="utf-8")
