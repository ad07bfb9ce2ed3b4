"""Join the sources of the chat page into one file. Knows no server.

``python -m asyncgen_apps.websocket.chat_page > chat.html`` writes the file, for another web server.
"""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from pathlib import Path

PAGE = Path(__file__).parent / "page"
"""Sources of the chat page: ``page.html``, and what it names within ``{{ }}``."""

_SOURCE = re.compile(r"\{\{ ([a-z_]+\.(?:css|js)) \}\}\n")


def joined(folder: Path = PAGE) -> str:
    """Join the sources of a page, and name its script and its style in its policy by their hashes.

    Args:
        folder: Folder of ``page.html``, whose lines ``{{ name }}`` stand for files of the folder.
    """
    page = (folder / "page.html").read_text(encoding="utf-8")
    page = _SOURCE.sub(lambda found: (folder / found[1]).read_text(encoding="utf-8"), page)
    for tag in ("script", "style"):
        page = page.replace(f"{{{{ hash of {tag} }}}}", _digest(page, tag))
    return page


def _digest(page: str, tag: str) -> str:
    inside = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return "sha256-" + base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()


if __name__ == "__main__":
    sys.stdout.buffer.write(joined().encode())
