"""Build the site of the pages that lie beside the code, with a reference of every public name.

``python apps/docs/build_site.py`` writes ``build/docs/site``. The tree of the pages is that of the
checkout, so that links between them need no change; files that they show or link lie beside them.
A broken link or a missing name is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "docs"
FOLDERS = ("asyncgen", "streamers", "apps")
SOURCES = (ROOT, ROOT / "apps", ROOT / "apps" / "docs")
"""Folders of the packages, and of the extension ``reading``."""

GROUPS = {
    "streams": "Streams",
    "errors": "Errors",
    "loading": "Loading",
    "generation": "Generation",
    "logits": "Logits processors",
    "stopping": "Stopping criteria",
    "beams": "Beams and constraints",
    "caches": "Caches",
    "watermarks": "Watermarks",
    "batching": "Continuous batching",
    "streamers": "Streamers",
    "applications": "Applications",
}
"""Pages of the reference: file and title."""

HOMES = {
    "asyncgen": "streams",
    "asyncgen.reference.auto": "loading",
    "asyncgen.text.batch_encoding": "loading",
    "asyncgen.cache": "caches",
    "asyncgen.checkpoints": "loading",
    "asyncgen.engine": "batching",
    "asyncgen.engine.metrics": "streams",
    "asyncgen.engine.requests": "streams",
    "asyncgen.errors": "errors",
    "asyncgen.generation": "generation",
    "asyncgen.generation.logits": "logits",
    "asyncgen.generation.stopping": "stopping",
    "asyncgen.generation.strategies": "beams",
    "asyncgen.generation.watermarking": "watermarks",
    "asyncgen.reference.pretrained_model": "loading",
    "asyncgen.models": "loading",
    "asyncgen.reference.load_model": "loading",
    "asyncgen.reference.seq2seq_model": "loading",
    "asyncgen.text.tokenizer": "loading",
    "streamers": "streamers",
}
"""Page of a name, by the module that defines it; the longest prefix counts."""

APPLICATIONS = (
    "asyncgen_apps.websocket",
    "asyncgen_apps.openai_http",
    "asyncgen_apps.gradio_chat",
    "asyncgen_apps.metrics",
)
"""Packages whose public names are listed as well; they are read, not imported."""


def pages() -> list[Path]:
    """Return the pages of the checkout."""
    beside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    return sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *beside])


def reference() -> dict[str, list[str]]:
    """Return the public names of each page, dotted as they are imported."""
    import asyncgen
    import streamers

    found: dict[str, list[str]] = {page: [] for page in GROUPS}
    for package in (asyncgen, streamers):
        for name in package.__all__:
            if package is asyncgen or name not in asyncgen.__all__:
                home = getattr(getattr(package, name), "__module__", None) or "asyncgen"
                found[_page_of(home)].append(f"{package.__name__}.{name}")
    for application in APPLICATIONS:
        found["applications"] += [f"{application}.{name}" for name in _listed(application)]
    return found


def _page_of(home: str) -> str:
    """Return the page of a module's names; types of other packages go to the streams."""
    parts = home.split(".")
    prefixes = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((HOMES[prefix] for prefix in prefixes if prefix in HOMES), "streams")


def _listed(package: str) -> list[str]:
    """Read the names in a package's ``__all__`` without importing it."""
    path = ROOT / "apps" / package.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = re.search(r"^__all__ = \[(.*?)\]", source.read_text("utf-8"), re.M | re.S)
    assert text is not None, source
    return re.findall(r'"(\w+)"', text[1])


def gather(into: Path) -> None:
    """Copy the pages and the files that they link, and write the pages of the reference."""
    shutil.rmtree(into, ignore_errors=True)
    for page in pages():
        text = page.read_text(encoding="utf-8")
        linked = re.findall(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)", text)
        for path in {page, *((page.parent / link).resolve() for link in linked)}:
            if path.is_file():
                copy = into / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
    (into / "reference").mkdir()
    for page_name, names in reference().items():
        blocks = [f"::: {name}\n" for name in names]
        content = "\n".join([f"# {GROUPS[page_name]}\n", *blocks])
        (into / "reference" / f"{page_name}.md").write_text(content, encoding="utf-8")


def main() -> None:
    """Build the site, strictly, and check that it has every name."""
    gather(BUILD / "pages")
    shutil.copyfile(Path(__file__).with_name("mkdocs.yml"), BUILD / "mkdocs.yml")
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    path = os.pathsep.join(map(str, SOURCES))
    subprocess.run(command, cwd=BUILD, check=True, env={**os.environ, "PYTHONPATH": path})
    for page_name, names in reference().items():
        html = (BUILD / "site" / "reference" / page_name / "index.html").read_text("utf-8")
        lost = [name for name in names if f'id="{name}"' not in html]
        assert not lost, f"{page_name} lacks {lost}"


if __name__ == "__main__":
    sys.path[:0] = map(str, SOURCES)
    main()
