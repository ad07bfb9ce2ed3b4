"""Open a model, with a line in the terminal meanwhile."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TextIO

from asyncgen_apps.cli import source as sources

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from asyncgen_apps.cli.source import LLM, Source


ERASE_LINE = "\r\x1b[2K"


@contextmanager
def loading_line(name: str, out: TextIO | None = None, *, doing: str = "loading") -> Iterator[None]:
    """Show a line while the block runs; nothing without a terminal.

    The line is not animated: after the first second, the library draws its progress bar of
    the weights over it, and two writers would tear each other's lines.

    Args:
        name: The model as the user named it.
        out: Stream to write to; standard error by default.
        doing: Verb of the line.
    """
    out = sys.stderr if out is None else out
    if not out.isatty():
        yield
        return
    out.write(f"\r\x1b[2m{doing} {name} …\x1b[0m")
    out.flush()
    try:
        yield
    finally:
        out.write(ERASE_LINE)
        out.flush()


@asynccontextmanager
async def opened(source: Source) -> AsyncIterator[LLM]:
    """Load a model, with a line in the terminal meanwhile; close it on leaving."""
    async with AsyncExitStack() as stack:
        doing = "loading" if source.url is None else "connecting to"
        with loading_line(source.name, doing=doing):
            llm = await stack.enter_async_context(sources.open_llm(source))
        yield llm
