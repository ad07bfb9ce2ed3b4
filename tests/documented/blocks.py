"""Code blocks of the reference documents, without prompts and outputs, and how they are run.

They are stored in ``blocks.json`` by ``python -m tests.documented.extract FOLDER``.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BLOCKS", "Block", "blocks", "find", "run"]

BLOCKS = Path(__file__).with_name("blocks.json")

FENCE = re.compile(r" *```")
OPENING = re.compile(r" *``` ?(py|python)\s*")
PROMPT = re.compile(r"(?:>>>|\.\.\.)(?: |$)")

UNFENCED = {
    "Basic Quantized Inference": "Sampling with Temperature and Top-p",
    "Sampling with Temperature and Top-p": "Streaming Output",
    "Streaming Output": "Greedy Decoding (Deterministic)",
    "Greedy Decoding (Deterministic)": None,
}
"""Headings above code of a page that lost its fences, each with the heading below."""

LOST = (
    "transition_scores.numpy() >> length_penalty",
    "transition_scores.numpy() < 0, axis=1)\n>>> length_penalty",
)
"""Text of a page between a "less than" and a "greater than" that was taken for markup."""


@dataclass(frozen=True, slots=True)
class Block:
    """A code block.

    Attributes:
        place: Its page and line, such as ``generation_utilities:29``.
        code: Python, without prompts and outputs.
    """

    place: str
    code: str


@cache
def blocks() -> tuple[Block, ...]:
    """Return all blocks of Python in the order of the pages."""
    return tuple(Block(**one) for one in json.loads(BLOCKS.read_text(encoding="utf-8")))


def find(place: str) -> Block:
    """Return the block of a place."""
    return next(block for block in blocks() if block.place == place)


def read_page(path: Path) -> Iterator[Block]:
    """Read the blocks of Python on a page of the documents."""
    text = path.read_text(encoding="utf-8").replace(*LOST)
    opened, body = 0, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        if opened and FENCE.match(line):
            yield Block(f"{path.stem}:{opened}", without_outputs(body))
            opened, body = 0, []
        elif opened:
            body.append(line)
        elif OPENING.fullmatch(line):
            opened = number
    for heading, below in UNFENCED.items():
        if f"\n{heading}\n" in text:
            before, _, rest = text.partition(f"\n{heading}\n")
            code = rest.partition(f"\n{below}\n" if below else "<!--")[0]
            yield Block(
                f"{path.stem}:{before.count(chr(10)) + 2}", without_outputs(code.split("\n"))
            )


def without_outputs(lines: list[str]) -> str:
    """Take the code out of what an interpreter shows: without prompts and the lines it printed."""
    lines = textwrap.dedent("\n".join(lines)).strip("\n").split("\n")
    if any(line.startswith(">>>") for line in lines):
        lines = [PROMPT.sub("", line, count=1) for line in lines if PROMPT.match(line)]
    return "\n".join(lines)


def run(block: Block, library: str, names: dict[str, Any]) -> list[Any]:
    """Run a block with another library in its import lines.

    Without a GPU what goes to "cuda" stays where it is.

    Args:
        block: The block.
        library: The package to import from.
        names: Names of the blocks before, if it goes on from them; changed.

    Returns:
        What an interpreter would show, as objects: printed values, and those of expressions.
    """
    code = re.sub(
        r"^( *)from transformers import", rf"\1from {library} import", block.code, flags=re.M
    )
    if not torch.cuda.is_available():
        code = code.replace('"cuda"', '"cpu"').replace(".cuda()", ".cpu()")
    shown: list[Any] = []
    names["print"] = lambda *values, **_: shown.extend(values)
    for node in ast.parse(code).body:
        part = ast.Module([node], [])
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            value = eval(compile(ast.Expression(node.value), block.place, "eval"), names)
            shown += [] if value is None else [value]
        else:
            exec(compile(part, block.place, "exec"), names)
    return shown
