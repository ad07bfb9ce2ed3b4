"""Read and write the recorded requests of clients: one JSON file per client.

A body is kept exactly: as ``json`` where writing that compactly gives its bytes, as most clients
write it, else as ``text``, or as ``base64`` where it is no UTF-8.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recorded"
HEADERS = ("accept", "authorization", "content-type")
"""The headers that are kept: those that a server may heed."""


@dataclass(frozen=True)
class Request:
    """One request of a client.

    Attributes:
        method: Such as ``POST``.
        path: With the query.
        headers: Those of `HEADERS` that were sent.
        body: As it was sent.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""

    def json(self) -> Any:
        """The body as an object."""
        return json.loads(self.body)


def compact(value: object) -> bytes:
    """Write JSON without spaces, as most clients do."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def read(client: str) -> dict[str, list[Request]]:
    """Return the requests of a client, by the name of its test."""
    found = json.loads((FOLDER / f"{client}.json").read_text(encoding="utf-8"))
    return {name: [_read(one) for one in sent] for name, sent in found["tests"].items()}


def write(client: str, versions: str, sent: dict[str, list[Request]]) -> None:
    """Keep what a client sent, a request a line."""
    tests = ",\n".join(
        f"  {json.dumps(name)}: [\n"
        + ",\n".join(f"   {json.dumps(_written(one), ensure_ascii=False)}" for one in requests)
        + "\n  ]"
        for name, requests in sent.items()
    )
    text = f'{{\n "client": {json.dumps(versions)},\n "tests": {{\n{tests}\n }}\n}}\n'
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{client}.json").write_text(text, encoding="utf-8")


def _read(found: dict[str, Any]) -> Request:
    if "json" in found:
        body = compact(found["json"])
    else:
        body = b64decode(found.get("base64", "")) or found.get("text", "").encode()
    return Request(found["method"], found["path"], found["headers"], body)


def _written(request: Request) -> dict[str, object]:
    """The object that stands for a request in a file."""
    head: dict[str, object] = {
        "method": request.method,
        "path": request.path,
        "headers": request.headers,
    }
    if not request.body:
        return head
    with suppress(ValueError):
        if compact(value := request.json()) == request.body:
            return {**head, "json": value}
    with suppress(ValueError):
        return {**head, "text": request.body.decode()}
    return {**head, "base64": b64encode(request.body).decode()}
