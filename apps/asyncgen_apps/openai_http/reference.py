"""Every path with its fields as one page for reading, made of what ``/openapi.json`` says.

It runs no script and loads nothing, from here or from elsewhere. Knows schemas; no server.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

Schema = dict[str, Any]

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
:root { background: Canvas; color: CanvasText }
a { color: LinkText }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0 }
h2 { margin: 2.5rem 0 .25rem; font-size: 1.1rem }
h2 b { font-size: .75em; padding: .15em .5em; border-radius: .4em; background: var(--soft) }
code { font: .92em ui-monospace, Menlo, Consolas, monospace }
table { border-collapse: collapse; width: 100%; margin-top: .5rem }
td { border-top: 1px solid var(--line); padding: .3rem .6rem .3rem 0; vertical-align: top }
td:first-child { white-space: nowrap }
td + td { overflow-wrap: anywhere }
@media (max-width: 40rem) {
  tr, td { display: block; border: 0; padding: 0 }
  tr { border-top: 1px solid var(--line); padding: .4rem 0 }
}
"""


def reference_page(api: Schema) -> str:
    """Lay out the page.

    Args:
        api: An OpenAPI document.

    Returns:
        HTML.
    """
    info = api["info"]
    parts = [
        _path(api, path, method, operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    ]
    title = escape(info["title"])
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style><main><h1>{title}</h1>"
        f"<p>{_text(info.get('description', ''))} For programs: "
        f'<a href="openapi.json">openapi.json</a>.{"".join(parts)}</main></html>'
    )


def _path(api: Schema, path: str, method: str, operation: Schema) -> str:
    """Return a path and the fields of its body as HTML."""
    head = f"<h2><b>{escape(method.upper())}</b> <code>{escape(path)}</code></h2>"
    description = _text(operation.get("description") or operation.get("summary", ""))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    table = "" if body is None else _fields(api, _resolved(api, body["schema"]))
    return f"{head}<p>{description}</p>{table}"


def _fields(api: Schema, schema: Schema) -> str:
    """Return a table of the fields of an object, required ones first."""
    needed = schema.get("required", [])
    fields = sorted(schema.get("properties", {}).items(), key=lambda item: item[0] not in needed)
    rows = [
        f"<tr><td><code>{escape(name)}</code>{' (required)' if name in needed else ''}"
        f"<td>{escape(_kind(api, field))}<td>{_text(field.get('description', ''))}{_example(field)}"
        for name, field in fields
    ]
    return f"<table>{''.join(rows)}</table>"


def _example(field: Schema) -> str:
    """Return an example of a field as HTML."""
    examples = field.get("examples")
    if not examples:
        return ""
    return f" <small>For example <code>{escape(json.dumps(examples[0]))}</code></small>"


def _range(field: Schema) -> str:
    """Say between which numbers one lies."""
    words = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    # FastAPI writes every limit as a float.
    said = [f"{sign} {field[word]:.15g}" for word, sign in words.items() if word in field]
    return f" {', '.join(said)}" if said else ""


def _kind(api: Schema, field: Schema) -> str:
    """Say what a field takes."""
    if "$ref" in field:
        found = _resolved(api, field)
        inner = ", ".join(found.get("properties", ()))
        return f"{{{inner}}}"
    if "anyOf" in field:
        kinds = [_kind(api, one) for one in field["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "const" in field or "enum" in field:
        return " or ".join(json.dumps(one) for one in field.get("enum", [field.get("const")]))
    if "prefixItems" in field:
        return f"[{', '.join(_kind(api, one) for one in field['prefixItems'])}]"
    if field.get("type") == "array":
        inner = _kind(api, field.get("items", {}))
        return f"list of ({inner})" if " or " in inner else f"list of {inner}"
    return str(field.get("type", "any")) + _range(field)


def _resolved(api: Schema, schema: Schema) -> Schema:
    """Follow a reference inside of the document."""
    if "$ref" not in schema:
        return schema
    found: Schema = api
    for step in schema["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return found


def _text(text: str) -> str:
    """Return a docstring or a description as HTML; text between backticks is code."""
    parts = escape(text.replace("``", "`"), quote=False).split("`")
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts))
