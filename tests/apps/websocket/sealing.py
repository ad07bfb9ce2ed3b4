"""The page's policy names its script and its style by their hashes; this puts them there.

``python -m tests.apps.websocket.sealing`` after a change of either.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import asyncgen_apps

PAGE = Path(asyncgen_apps.__file__).with_name("websocket") / "page.html"


def sealed(page: str) -> str:
    """Return the page with the hashes of the script and the style that it has."""
    for tag in ("script", "style"):
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert len(inside) == 1, f"there must be one <{tag}> without attributes"
        digest = base64.b64encode(hashlib.sha256(inside[0].encode()).digest()).decode()
        page = re.sub(rf"({tag}-src 'sha256-)[^']*'", rf"\g<1>{digest}'", page)
    return page


if __name__ == "__main__":
    PAGE.write_text(sealed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
