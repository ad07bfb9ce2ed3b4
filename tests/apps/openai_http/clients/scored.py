"""The bundled model for clients that score texts: its tokenizer puts nothing before a text.

Who counts the tokens of a text by itself, and sends the text, must count as the server does.
"""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import asyncgen
from asyncgen import AsyncLLM
from tests.apps.openai_http.running import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.running import Running


@contextmanager
def scored() -> Iterator[tuple[Running, Path]]:
    """A server, and the folder that its model is in."""
    with TemporaryDirectory() as place:
        folder = Path(place) / "demo"
        shutil.copytree(Path(asyncgen.__file__).parent / "demo", folder)
        file = folder / "tokenizer.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**content, "post_processor": None}), encoding="utf-8")
        with running(lambda: AsyncLLM(folder, num_threads=1)) as served:
            yield served, folder
