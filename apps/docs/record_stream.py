"""Record the picture of the README: a stream that is stopped, and that goes on.

``python apps/docs/record_stream.py`` runs the program that the picture shows on the bundled model,
notes each piece of text and its time, and writes ``stream.svg``: CSS alone moves it, so that it
plays wherever pictures are shown. The model is so quick that it plays `SLOWER` times slower.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import asyncgen

PICTURE = Path(__file__).with_name("stream.svg")
QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
SLOWER = 40
READING = 1.2
"""Seconds between the scenes, and three times that at the end."""

PROGRAM = """\
stream = llm.stream(question, seed=7)   # "Tell me a story about a fox."
async for text in stream:
    print(text, end="")
    if "forest" in text:
        break   # the model stops here, too
"""
RESUMED = "rest = llm.stream(question, seed=7, generated_ids=token_ids)   # elsewhere"

WIDTH, COLUMNS, ADVANCE, LINE, LEFT = 800, 86, 8.4, 20, 30


@dataclass(slots=True)
class Picture:
    """Texts of a terminal, each with the second at which it appears.

    Attributes:
        row: Line to write in.
        column: Place in the line.
        parts: What is there: second, row, column, text, kind.
    """

    row: int = 0
    column: int = 0
    parts: list[tuple[float, int, int, str, str]] = field(default_factory=list)

    def write(self, second: float, text: str, kind: str) -> None:
        """Write behind what is there; break lines between words."""
        for word in text.replace(" ", "\0 ").split("\0"):
            if word.startswith(" ") and self.column + len(word) > COLUMNS:
                self.row, self.column, word = self.row + 1, 0, word.lstrip()
            if word:
                self.parts.append((second, self.row, self.column, word, kind))
            self.column += len(word)

    def line(self, second: float, text: str, kind: str) -> None:
        """Write a line of its own."""
        self.row += bool(self.column)
        self.parts.append((second, self.row, 0, text, kind))
        self.row, self.column = self.row + 1, 0

    def svg(self, seconds: float) -> str:
        """Draw it; it begins anew after so many seconds."""
        height = LINE * (self.row + 1) + 60
        starts = sorted({part[0] for part in self.parts})
        frames = "".join(
            f"@keyframes t{number}{{0%{{opacity:0}}{100 * start / seconds:.2f}%{{opacity:1}}}}"
            f".t{number}{{animation:t{number} {seconds:.2f}s step-end infinite}}"
            for number, start in enumerate(starts)
            if start
        )
        texts = "\n".join(
            f'<text x="{LEFT + column * ADVANCE:.1f}" y="{LINE * row + 62}" class="{kind}'
            f' t{starts.index(start)}" textLength="{len(text) * ADVANCE:.1f}">{escape(text)}</text>'
            for start, row, column, text, kind in self.parts
        )
        return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">
<title>A stream that is stopped by break, and goes on</title>
<style>text{{font:14px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre}}
.code{{fill:#9aa4c0}}.text{{fill:#f2f4fb}}.said{{fill:#7ee2a8}}.note{{fill:#7a839c;font-size:12px}}
{frames}
@media (prefers-reduced-motion:reduce){{text{{animation:none!important}}}}</style>
<rect width="{WIDTH}" height="{height}" rx="10" fill="#14161f"/>
<circle cx="22" cy="20" r="6" fill="#ff5f57"/><circle cx="42" cy="20" r="6" fill="#febc2e"/>
<circle cx="62" cy="20" r="6" fill="#28c840"/>
<text x="{WIDTH - 20}" y="24" class="note" text-anchor="end">recorded; {SLOWER} times slower</text>
{texts}
</svg>
"""


async def record(llm: asyncgen.AsyncLLM, stop: str | None = None, **options: Any) -> Any:
    """Read a stream; return its pieces with their seconds, its ids, and how it ended."""
    stream = llm.stream(QUESTION, seed=7, max_new_tokens=48, **options)
    pieces: list[tuple[float, str]] = []
    token_ids: list[int] = []
    text, start = "", time.perf_counter()
    async for event in stream.events():
        pieces.append((time.perf_counter() - start, event.text))
        token_ids += event.token_ids
        text += event.text
        if stop and stop in text:
            break
    return pieces, token_ids, stream.result


async def main() -> None:
    """Run the program that the picture shows, and draw it."""
    async with asyncgen.AsyncLLM("demo", num_threads=1) as llm:
        await llm.generate(QUESTION, max_new_tokens=8)  # loads the model
        first, token_ids, result = await record(llm, "forest")
        rest, more, _ = await record(llm, generated_ids=token_ids)
        _, straight, _ = await record(llm)
    assert [*token_ids, *more] == straight, "the picture says so"
    picture = Picture()
    for line in PROGRAM.splitlines():
        picture.line(0, line, "code")
    picture.row += 1
    now = READING / 3
    for second, text in first:
        picture.write(now + SLOWER * second, text, "text")
    now += SLOWER * first[-1][0] + READING / 2
    picture.line(now, f"{result.finish_reason}, after {len(token_ids)} tokens", "said")
    picture.row += 1
    now += READING
    picture.line(now, RESUMED, "code")
    picture.row += 1
    now += READING
    for second, text in rest:
        picture.write(now + SLOWER * second, text, "text")
    now += SLOWER * rest[-1][0] + READING / 2
    picture.line(now, "the same tokens as without the stop", "said")
    PICTURE.write_text(picture.svg(now + 3 * READING), encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(main())
