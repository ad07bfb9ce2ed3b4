"""The report, as JSON and as Markdown, written anew after every item: a kill loses nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.device.plan import SECTIONS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Report"]

MARKS = {
    "holds": "holds",
    "fails": "**fails**",
    "error": "**error**",
    "figures": "",
    "left out": "left out",
}
SIDES = ("ours", "unrecorded", "in order", "chunks", "continuous", "padded")


class Report:
    """Results so far."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Begin one.

        Args:
            folder: Where the two files go; made if it is not there.
            settings: What the command was given.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._settings = settings
        self._rows: list[dict[str, Any]] = []
        self.write()

    @property
    def num_wrong(self) -> int:
        """Claims that do not hold, and items that raised."""
        return sum(row["verdict"] in ("fails", "error") for row in self._rows)

    def add(self, item: Any, answer: dict[str, Any]) -> None:
        """Take an answer in, and write the files."""
        row = {"name": item.name, "section": item.section, "what": item.says, **answer}
        self._rows.append(row)
        self.write()

    def write(self) -> None:
        """Write both files; each is there whole at any time."""
        data = {"settings": self._settings, "items": self._rows}
        self._put("report.json", json.dumps(data, indent=1, default=str) + "\n")
        self._put("report.md", self.markdown())

    def markdown(self) -> str:
        """The report to read."""
        said = ", ".join(f"{name} {value}" for name, value in self._settings.items())
        parts = [f"# Device check\n\n{said}\n"]
        for section, title in SECTIONS.items():
            rows = [row for row in self._rows if row["section"] == section]
            if not rows:
                continue
            parts.append(f"## {title}\n")
            parts.append("| what | | found | s |\n|---|---|---|---|")
            for row in rows:
                seconds = f"{row['seconds']:.1f}" if "seconds" in row else ""
                cells = (row["name"], MARKS[row["verdict"]], row["says"], seconds)
                parts.append("| " + " | ".join(_cell(text) for text in cells) + " |")
            if section == "speed":
                parts += self._speed(rows)
            parts += [
                f"\n`{row['name']}`: {' < '.join(reversed(row['trace']))}"
                for row in rows
                if row.get("trace")
            ]
            parts.append("")
        return "\n".join(parts)

    def _speed(self, rows: list[dict[str, Any]]) -> list[str]:
        """One table for each shape: tokens per second of each side."""
        parts = []
        for shape in dict.fromkeys(row["name"].split(" ", 1)[0] for row in rows):
            cells: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
            for row in rows:
                own, _, side = row["name"].partition(" ")
                for cell in row.get("figures", {}).get("cells", []) if own == shape else []:
                    cells.setdefault((cell["streams"], cell["prompt"]), {})[side] = cell
            if not cells:
                continue
            names = [side for side in SIDES if any(side in found for found in cells.values())]
            parts.append(f"\n### {shape}, tokens/s\n")
            heads = ["streams", "prompt", *names, "best other", "first ms", "gap ms"]
            parts.append("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
            for (streams, prompt), found in sorted(cells.items()):
                line = [str(streams), str(prompt)]
                line += [_rate(found.get(side)) for side in names]
                line += _beside(found)
                parts.append("| " + " | ".join(line) + " |")
        return parts

    def _put(self, name: str, text: str) -> None:
        part = self._folder / f".{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self._folder / name)


def _beside(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the ratio to the better of the others, and our times."""
    ours = found.get("ours")
    others = [
        found[side]["tokens_per_second"] for side in ("continuous", "padded") if side in found
    ]
    ratio = f"x {ours['tokens_per_second'] / max(others):.2f}" if ours and others else ""
    times = [f"{ours[name]:.1f}" if ours else "" for name in ("first_ms", "gap_ms")]
    return [ratio, *times]


def _rate(cell: dict[str, Any] | None) -> str:
    return "" if cell is None else f"{cell['tokens_per_second']:.1f}"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
