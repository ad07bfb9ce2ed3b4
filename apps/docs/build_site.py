"""Build the site of the pages that lie beside the code, with a reference of every public name.

``python apps/docs/build_site.py`` writes ``build/docs/site``. The tree of the pages is that of the
checkout, so that links between them need no change; files that they show or link lie beside them.
A broken link or a missing name is an error.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "docs"
FOLDERS = ("asyncgen", "streamers", "apps")
SOURCES = (ROOT, ROOT / "apps", ROOT / "apps" / "docs")
"""Folders of the packages, and of the extension ``reading``."""

GROUPS = {
    "engine": "LLM and AsyncLLM",
    "streams": "Streams and answers",
    "errors": "Errors",
    "metrics": "Metrics",
    "loading": "Loading",
    "models": "Models",
    "tokenizers": "Tokenizers",
    "pretrained_tokenizers": "PreTrainedTokenizerFast",
    "families": "Classes of the families",
    "generation": "Generation",
    "logits": "Logits processors",
    "stopping": "Stopping criteria",
    "beams": "Beams and constraints",
    "caches": "Caches",
    "layers": "Layers of caches",
    "quantized": "Quantised caches",
    "watermarks": "Watermarks",
    "batching": "Continuous batching",
    "scheduling": "Schedulers",
    "streamers": "Streamers",
    "applications": "Applications",
}
"""Pages of the reference: file and title."""

HOMES = {
    "asyncgen": "streams",
    "asyncgen.llm.llm": "engine",
    "asyncgen.native": "engine",
    "asyncgen.reference.auto": "loading",
    "asyncgen.reference.pipelines": "loading",
    "asyncgen.reference.quantize_checkpoint": "loading",
    "asyncgen.reference.family_classes": "pretrained_tokenizers",
    "asyncgen.reference.continuous_batching": "batching",
    "asyncgen.families": "models",
    "asyncgen.text.batch_encoding": "tokenizers",
    "asyncgen.cache": "caches",
    "asyncgen.cache.layer_base": "layers",
    "asyncgen.cache.layers": "layers",
    "asyncgen.cache.sliding_layers": "layers",
    "asyncgen.cache.quantized": "quantized",
    "asyncgen.checkpoints": "loading",
    "asyncgen.engine": "scheduling",
    "asyncgen.engine.metrics": "metrics",
    "asyncgen.engine.requests": "streams",
    "asyncgen.errors": "errors",
    "asyncgen.generation": "generation",
    "asyncgen.generation.logits": "logits",
    "asyncgen.generation.stopping": "stopping",
    "asyncgen.generation.strategies": "beams",
    "asyncgen.generation.watermarking": "watermarks",
    "asyncgen.reference.pretrained_model": "models",
    "asyncgen.models": "models",
    "asyncgen.reference.load_model": "loading",
    "asyncgen.reference.seq2seq_model": "models",
    "asyncgen.checkpoints.push_to_hub": "models",
    "asyncgen.text.tokenizer": "tokenizers",
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


MOST_BYTES = 300_000
"""Size of the largest page: a longer one is slow to open, and nobody reads it."""

FAMILIES = """
Each of these classes loads the checkpoints of one family, and has the methods and attributes of the
class in its second column. [Families](../asyncgen/families/README.md) says what each family has;
`AutoModelForCausalLM` and `AutoTokenizer` on [Loading](loading.md) find the class by themselves.
"""


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
                one = getattr(package, name)
                home = getattr(one, "__module__", None) or "asyncgen"
                # Classes of families are made when they are asked for, in no module.
                page = "families" if home == "asyncgen" and isinstance(one, type) else None
                found[page or _page_of(home)].append(f"{package.__name__}.{name}")
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
    for name in ("site.js", "site.css"):
        shutil.copyfile(Path(__file__).with_name(name), into / name)
    (into / "reference").mkdir()
    listed = reference()
    documented = {_class(name) for names in listed.values() for name in names}
    for page_name, names in listed.items():
        if page_name == "families":
            blocks = [_table_of_families(names)]
        else:
            blocks = [_block(name, documented) for name in names]
        content = "\n".join([f"# {GROUPS[page_name]}\n", *blocks])
        (into / "reference" / f"{page_name}.md").write_text(content, encoding="utf-8")


def _class(name: str) -> type | None:
    """Return the class that has this dotted name; ``None`` for other things, and applications."""
    package, _, rest = name.partition(".")
    found = getattr(sys.modules[package], rest) if package in ("asyncgen", "streamers") else None
    return found if isinstance(found, type) else None


def _block(name: str, documented: Collection[type | None]) -> str:
    """Return the directive that documents a name.

    What a class inherits from another one of these pages stands there. What it inherits from a
    class that nobody imports stands on its own page.
    """
    kind = _class(name)
    if kind is None:
        return f"::: {name}\n"
    hidden = [
        each
        for base in kind.__mro__[1:]
        if base not in documented and base.__module__.startswith(("asyncgen", "streamers"))
        for each in vars(base)
        if not each.startswith("_")
    ]
    shown = ", ".join(sorted({*hidden} - {*vars(kind)}))
    return f"::: {name}\n    options:\n      inherited_members: [{shown}]\n"


def _loads(kind: Any) -> str:
    """Return what the files of the checkpoints say that a class loads."""
    names = getattr(kind, "names", None)
    if names is None:
        return f"`model_type`: `{kind.model_type}`"
    return "`tokenizer_class`: " + ", ".join(f"`{each}`" for each in names)


def _table_of_families(names: Sequence[str]) -> str:
    """Return the page of the classes that stand for a family, which differ in what they load."""
    rows = []
    for name in names:
        kind = _class(name)
        assert kind is not None, name
        base = next(each for each in kind.__mro__[1:] if each.__module__ != "asyncgen")
        page = "pretrained_tokenizers" if "Token" in kind.__name__ else "models"
        link = f"[`{base.__name__}`]({page}.md)"
        rows.append(f'| <span id="{name}">`{kind.__name__}`</span> | {link} | {_loads(kind)} |')
    return "\n".join(
        [FAMILIES, "| Class | All its methods | Checkpoints |", "|---|---|---|", *rows]
    )


def main() -> None:
    """Build the site, strictly, and check that it has every name."""
    gather(BUILD / "pages")
    shutil.copyfile(Path(__file__).with_name("mkdocs.yml"), BUILD / "mkdocs.yml")
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    path = os.pathsep.join(map(str, SOURCES))
    subprocess.run(command, cwd=BUILD, check=True, env={**os.environ, "PYTHONPATH": path})
    _leave_changes_out_of_search()
    _find_the_tutorial()
    for page_name, names in reference().items():
        html = (BUILD / "site" / "reference" / page_name / "index.html").read_text("utf-8")
        lost = [name for name in names if f'id="{name}"' not in html]
        assert not lost, f"{page_name} lacks {lost}"
    for page in (BUILD / "site").rglob("index.html"):
        size = page.stat().st_size
        assert size <= MOST_BYTES, f"{page} has {size} bytes; at most {MOST_BYTES} are good"
        lost = [link for link in _links(page) if not (page.parent / link).exists()]
        assert not lost, f"{page} links to {lost}, which the site does not have"


def _leave_changes_out_of_search() -> None:
    """Take the changelog out of the index: it has every word, and stood before the guides."""
    file = BUILD / "site" / "search.json"
    index = json.loads(file.read_text("utf-8"))
    kept = [one for one in index["items"] if not one["location"].startswith("CHANGELOG")]
    assert len(kept) < len(index["items"]), "the builder calls the changelog otherwise"
    file.write_text(json.dumps(index | {"items": kept}), encoding="utf-8")


def _find_the_tutorial() -> None:
    """Check that the index has the tutorial first under the words that newcomers look for."""
    items = json.loads((BUILD / "site" / "search.json").read_text("utf-8"))["items"]
    for words in ("tutorial", "quickstart", "getting started"):
        found = [one for one in items if words in f"{one['title']} {one['text']}".lower()]
        first = next((one["location"] for one in found if words in one["title"].lower()), None)
        assert (first or found[0]["location"]) == "asyncgen/docs/tutorial/", (words, found)


def _links(page: Path) -> list[str]:
    """Return what a page links in the site, without anchors; the builder looks at those."""
    found = re.findall(r'(?:href|src)="([^"#?]+)', page.read_text("utf-8"))
    return [unquote(link) for link in found if not re.match(r"[a-z]+:|//", link)]


if __name__ == "__main__":
    sys.path[:0] = map(str, SOURCES)
    main()
