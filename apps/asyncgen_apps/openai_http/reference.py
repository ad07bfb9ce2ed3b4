"""Every path with its fields as one page for reading, made of what ``/openapi.json`` says.

It runs no script and loads nothing, from here or from elsewhere. Knows schemas; no server.
"""

from __future__ import annotations

import json
import shlex
from html import escape
from typing import Any, NamedTuple

Schema = dict[str, Any]

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}
_MOST_EXACT = 2**53
"""Bounds of whole numbers from here on are those of a number's storage, and say nothing."""

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
ul { columns: 16rem; padding: 0; list-style: none }
pre { padding: .6rem .8rem; background: var(--soft); overflow-x: auto }
@media (max-width: 40rem) {
  tr, td { display: block; border: 0; padding: 0 }
  tr { border-top: 1px solid var(--line); padding: .4rem 0 }
}
"""


def reference_page(api: Schema, address: str, model: str = "demo", has_keys: bool = False) -> str:
    """Lay out the page.

    Args:
        api: An OpenAPI document.
        address: Where the server is reached, as in ``http://127.0.0.1:8000``.
        model: Name of a model that is served.
        has_keys: True if a request needs a key.

    Returns:
        HTML.
    """
    info = api["info"]
    operations = [
        (method.upper(), path, operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    ]
    parts = [_path(api, *one, _Caller(address, model, has_keys)) for one in operations]
    links = [
        f'<li><a href="#{_anchor(method, path)}"><code>{method} {escape(path)}</code></a>'
        for method, path, _ in operations
    ]
    key = "Each request needs a key: <code>Authorization: Bearer KEY</code>." if has_keys else ""
    title = escape(info["title"])
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style><main><h1>{title}</h1>"
        f"<p>{_text(info.get('description', ''))} For programs: "
        f'<a href="openapi.json">openapi.json</a>. {key}</p><nav aria-label="Paths"><ul>'
        f"{''.join(links)}</ul></nav>{''.join(parts)}</main></html>"
    )


class _Caller(NamedTuple):
    """What a call needs beside its path and its body."""

    address: str
    model: str
    has_keys: bool

    def command(self, path: str, body: Schema) -> str:
        """Return a call as a line for a shell."""
        key = ' -H "Authorization: Bearer $ASYNCGEN_API_KEY"' if self.has_keys else ""
        data = shlex.quote(json.dumps(body, ensure_ascii=False))
        where = shlex.quote(self.address + path)
        return f"curl {where}{key} -H 'Content-Type: application/json' \\\n  -d {data}"


def _anchor(method: str, path: str) -> str:
    """Return the name of a path's place on the page."""
    return escape("-".join([method.lower(), *path.strip("/").split("/")]))


def _path(api: Schema, method: str, path: str, operation: Schema, caller: _Caller) -> str:
    """Return a path, a call, and the fields of its body as HTML."""
    place = _anchor(method, path)
    head = f'<h2 id="{place}"><b>{escape(method)}</b> <code>{escape(path)}</code></h2>'
    description = _text(operation.get("description") or operation.get("summary", ""))
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return f"{head}<p>{description}</p>"
    schema = _resolved(api, content["schema"])
    fields = _noted(schema, caller.model)
    needed = schema.get("required") or [name for name, _ in fields if name != "model"][:1]
    body = {name: _example_of(field) for name, field in fields if name in needed}
    call = f'<pre tabindex="0"><code>{escape(caller.command(path, body))}</code></pre>'
    return (
        f"{head}<p>{description}</p>{call}{_fields(api, schema, fields)}{_answer(api, operation)}"
    )


def _noted(schema: Schema, model: str) -> list[tuple[str, Schema]]:
    """Return the fields of an object, required ones first; the model's example is the one here."""
    needed = schema.get("required", [])
    fields = [
        (name, {**field, "examples": [model]} if name == "model" else field)
        for name, field in schema.get("properties", {}).items()
    ]
    return sorted(fields, key=lambda item: item[0] not in needed)


def _answer(api: Schema, operation: Schema) -> str:
    """Say which fields the answer has."""
    content = operation.get("responses", {}).get("200", {}).get("content", {})
    if "application/json" not in content:
        return ""
    fields = _kind(api, content["application/json"]["schema"])
    events = " With <code>stream</code>: events." if "text/event-stream" in content else ""
    return f"<p>Answer: <code>{escape(fields)}</code>.{events}</p>"


def _fields(api: Schema, schema: Schema, fields: list[tuple[str, Schema]]) -> str:
    """Return a table of the fields of an object."""
    needed = schema.get("required", [])
    rows = [
        f"<tr><td><code>{escape(name)}</code>{' (required)' if name in needed else ''}"
        f"<td>{escape(_kind(api, field))}<td>{_text(field.get('description', ''))}{_example(field)}"
        for name, field in fields
    ]
    return f"<table>{''.join(rows)}</table>"


def _example(field: Schema) -> str:
    """Return an example of a field as HTML."""
    if not field.get("examples"):
        return ""
    shown = json.dumps(_example_of(field), ensure_ascii=False)
    return f" <small>For example <code>{escape(shown)}</code></small>"


def _example_of(field: Schema) -> Any:
    """Return a value of a field."""
    return next(iter(field.get("examples", ())), None)


def _range(field: Schema) -> str:
    """Say between which numbers one lies."""
    words = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    # FastAPI writes every limit as a float.
    said = [
        f"{sign} {field[word]:.15g}"
        for word, sign in words.items()
        if abs(field.get(word, _MOST_EXACT)) < _MOST_EXACT
    ]
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
