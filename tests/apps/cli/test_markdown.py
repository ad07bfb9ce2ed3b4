from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.markdown import Markdown

from asyncgen_apps.cli.markdown import GrowingMarkdown

DOCUMENT = """# Title

A paragraph
of two lines.

1. one

2. two

   still two

- a
- b

```python
x = 1

# not a heading
```

| a | b |
|---|---|
| 1 | 2 |

Setext
======

> quote

    code

last
"""

fragments = st.sampled_from(
    ["# h", "text", "- item", "1. one", "2", ". two", "```", "| a |", "|---|", "===", "---", "> q"]
    + ["    code", "*", "**bold**", "\n", "\n\n", " ", "\u2028", "[a]: b"]
)
documents = st.lists(fragments, max_size=25).map("".join)


def block_kinds(text: str) -> list[str]:
    """The top-level blocks of a document."""
    return [t.type for t in Markdown(text).parsed if t.level == 0 and t.nesting >= 0]


def feed(pieces: list[str]) -> list[str]:
    growing = GrowingMarkdown()
    settled = [growing.feed(piece) for piece in pieces]
    return [*filter(None, settled), growing.finish()]


@given(st.lists(fragments, max_size=30))
def test_split_text_is_neither_lost_nor_repeated(pieces: list[str]) -> None:
    assert "".join(feed(pieces)) == "".join(pieces)


@given(documents, st.integers(1, 7))
def test_settled_blocks_are_those_of_the_whole(document: str, size: int) -> None:
    pieces = [document[start : start + size] for start in range(0, len(document), size)]
    parts = feed(pieces)
    assert [kind for part in parts for kind in block_kinds(part)] == block_kinds(document)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_document_of_all_kinds_comes_in_its_blocks(size: int) -> None:
    pieces = [DOCUMENT[start : start + size] for start in range(0, len(DOCUMENT), size)]
    parts = feed(pieces)
    assert [kind for part in parts for kind in block_kinds(part)] == block_kinds(DOCUMENT)
    if size == 1:
        assert len(parts) == len(block_kinds(DOCUMENT))


def test_half_a_line_settles_nothing() -> None:
    growing = GrowingMarkdown()
    assert growing.feed("1. one\n\n2") == ""
    assert growing.feed(". two\n") == ""
    assert growing.open == "1. one\n\n2. two\n"
    assert growing.feed("\ntext\n") == "1. one\n\n2. two\n\n"


def test_an_open_fence_stays_open() -> None:
    growing = GrowingMarkdown()
    assert growing.feed("```\na\n\nb\n\n# c\n") == ""
    assert growing.feed("```\nafter\n") == "```\na\n\nb\n\n# c\n```\n"
