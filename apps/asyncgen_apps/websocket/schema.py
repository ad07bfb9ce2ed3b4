"""Write the JSON schema of the protocol from its models.

``python -m asyncgen_apps.websocket.schema --write`` updates the committed file; without ``--write``
the schema is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from asyncgen_apps.websocket.messages import CLIENT_MESSAGE, SERVER_MESSAGE, SUBPROTOCOL

FILE = Path(__file__).parent / "protocol.schema.json"
"""Committed file."""


def protocol_schema() -> dict[str, Any]:
    """Return a schema that every message fits.

    ``$defs`` has ``ClientMessage``, ``ServerMessage`` and every message by its name.
    """
    definitions: dict[str, Any] = {}
    for name, adapter in (("ClientMessage", CLIENT_MESSAGE), ("ServerMessage", SERVER_MESSAGE)):
        union = adapter.json_schema(ref_template="#/$defs/{model}")
        definitions.update(union.pop("$defs"))
        definitions[name] = union
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SUBPROTOCOL,
        "anyOf": [{"$ref": "#/$defs/ClientMessage"}, {"$ref": "#/$defs/ServerMessage"}],
        "$defs": dict(sorted(definitions.items())),
    }


def render() -> str:
    """Return the content of the file."""
    return json.dumps(protocol_schema(), indent=2, sort_keys=True) + "\n"


def main() -> None:
    """Write the file, or print its content."""
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(render(), encoding="utf-8")
    else:
        sys.stdout.write(render())


if __name__ == "__main__":
    main()
