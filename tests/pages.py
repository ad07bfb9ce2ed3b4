"""The pages of the documentation: where they are, their links, and the code that they show.

A block that is marked as ``python`` runs as it stands; one marked as ``py`` is shown only. Comments
before a block, which no reader sees, say more of it:

- ``<!-- continues -->``: it goes on behind the block before it, in one program;
- ``<!-- needs: name -->``: packages that are not among those of the tests;
- ``<!-- notebook -->``: a cell, which may await.
- ``<!-- output -->``: what the block before it prints; ``…`` stands for any text.

The commands of the tutorial run where they have ``<!-- run -->``, or ``<!-- server: port -->``; a
block with ``<!-- file: name -->`` is saved first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "PAGES",
    "ROOT",
    "Block",
    "Example",
    "anchors",
    "blocks",
    "examples",
    "fences",
    "links",
    "prints",
    "table",
]

ROOT = Path(__file__).parents[1]
FOLDERS = ("asyncgen", "streamers", "apps")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md"))]
)

_FENCE = re.compile(
    r"(?P<notes>(?:^<!-- [^\n]* -->\n)*)"
    r"^(?P<fence>`{3,})(?P<kind>[\w.]*)\n(?P<code>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(slots=True)
class Block:
    """A block of a page.

    Attributes:
        line: Where it begins.
        notes: The comments before it.
        kind: What is marked: ``python``, ``sh`` …
        code: Its text.
    """

    line: int
    notes: str
    kind: str
    code: str

    def note(self, name: str) -> str | None:
        """Return what a comment ``name: value`` says; ``None`` if there is none."""
        found = re.search(rf"<!-- {name}: (\S+) -->", self.notes)
        return found[1] if found else None


@dataclass(slots=True)
class Example:
    """A program that a page shows.

    Attributes:
        page: Where.
        line: Of its first block.
        code: All its blocks.
        needs: Packages beyond those of the tests.
        awaits: Whether it awaits outside of functions.
        output: What the page says that it prints, if it does.
    """

    page: Path
    line: int
    code: str
    needs: tuple[str, ...]
    awaits: bool
    output: str | None = None

    def __str__(self) -> str:
        """Page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def fences(page: Path) -> Iterator[Block]:
    """All blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start("fence")) + 1
        yield Block(line, found["notes"], found["kind"], found["code"])


def blocks(page: Path, kind: str) -> Iterator[tuple[int, str, str]]:
    """Blocks of a language: line, the comments before it, code."""
    return ((one.line, one.notes, one.code) for one in fences(page) if one.kind == kind)


def examples(page: Path) -> list[Example]:
    """The programs of a page."""
    programs: list[Example] = []
    last = ""
    for block in fences(page):
        if "<!-- output -->" in block.notes and last == "python":
            programs[-1].output = block.code
        needs = tuple(re.findall(r"<!-- needs: (\w+) -->", block.notes))
        if block.kind == "python" and "<!-- continues -->" in block.notes:
            # Empty lines, so that an error's line is that of the page.
            gap = block.line - programs[-1].line - programs[-1].code.count("\n")
            programs[-1].code += "\n" * gap + block.code
            programs[-1].needs += needs
        elif block.kind == "python":
            awaits = "<!-- notebook -->" in block.notes
            programs.append(Example(page, block.line, block.code, needs, awaits))
        last = block.kind
    return programs


def prints(documented: str, printed: str) -> bool:
    """Tell whether a program printed what its page says, where ``…`` stands for any text."""
    pattern = ".*?".join(map(re.escape, documented.strip().split("…")))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def links(page: Path) -> set[str]:
    """List the links of a page, pictures included, without addresses of other hosts."""
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text(encoding="utf-8")))
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return {link for link in found if not re.match(r"\w+:", link)}


def anchors(page: Path) -> set[str]:
    """Names of the headings of a page, as links spell them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title in titles}


def table(page: Path) -> list[list[str]]:
    """Cells of all rows of all tables of a page."""
    lines = page.read_text(encoding="utf-8").splitlines()
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows]
