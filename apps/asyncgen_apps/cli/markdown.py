"""Split growing Markdown into blocks that are final and a rest that may change.

The grammar of blocks is that of rich's parser.
"""

from __future__ import annotations

from rich.markdown import Markdown


class GrowingMarkdown:
    """Collector of Markdown pieces that returns whole blocks as soon as they are final.

    Text that is appended can change only the last block of a document (a paragraph that becomes a
    heading or a table, a list that gets an item, a fence that is not closed). A block is
    therefore settled when another one has begun after it, on a line that is complete: half a
    line may still turn out to belong to the block before (``1`` becomes ``1.``).
    """

    def __init__(self) -> None:
        """Start with no text."""
        self._open = ""

    @property
    def open(self) -> str:
        """Text that may still change."""
        return self._open

    def feed(self, piece: str) -> str:
        """Append text, and return the blocks that became final.

        Args:
            piece: The next piece, of any length.

        Returns:
            Whole blocks, possibly none; never again part of :attr:`open`.
        """
        self._open += piece
        # Only a line end can settle anything, so the parser runs once a line, not once a token.
        if "\n" not in piece:
            return ""
        complete = self._open[: self._open.rindex("\n") + 1]
        starts = [
            token.map[0]
            for token in Markdown(complete).parsed
            if token.level == 0 and token.nesting >= 0 and token.map is not None
        ]
        if len(starts) < 2:
            return ""
        # Not splitlines(): Markdown knows no other line end than this one.
        lines = self._open.split("\n")
        settled = "".join(line + "\n" for line in lines[: starts[-1]])
        self._open = self._open[len(settled) :]
        return settled

    def finish(self) -> str:
        """Return the rest at the end of the text."""
        rest, self._open = self._open, ""
        return rest
