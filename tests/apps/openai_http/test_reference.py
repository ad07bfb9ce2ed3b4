"""A page for reading, made of a document for programs."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen_apps.openai_http.reference import reference_page
from tests.apps.gradio_chat.browsing import chromium
from tests.cases import for_each

PHONE = {"width": 390, "height": 844}
INTEGERS = {"type": "array", "items": {"type": "integer"}}


def page(field: dict[str, Any], **more: Any) -> str:
    """The page of one path with one field."""
    body = {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}
    schemas = {"Body": {"properties": {"x": field}, **more}, "Part": {"properties": {"type": {}}}}
    operation = {"summary": "Do `it`", "requestBody": {"content": body}}
    return reference_page(
        {
            "info": {"title": "<t>", "description": "a & b"},
            "paths": {"/v1/{id}": {"post": operation}},
            "components": {"schemas": schemas},
        }
    )


@for_each(
    ("field", "said"),
    [
        ({"type": "string"}, "string"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer"),
        ({"anyOf": [{"type": "integer"}, INTEGERS]}, "integer or list of integer"),
        (
            {"type": "array", "items": {"anyOf": [INTEGERS, {"type": "string"}]}},
            "list of (list of integer or string)",
        ),
        ({"const": "never"}, "&quot;never&quot;"),
        ({"enum": ["a", 1]}, "&quot;a&quot; or 1"),
        ({"prefixItems": [{"type": "integer"}, {"type": "number"}]}, "[integer, number]"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Part"}}, "list of {type}"),
        ({"type": "integer", "minimum": 1.0, "maximum": 10.0**7}, "integer ≥ 1, ≤ 10000000"),
        ({"anyOf": [{"type": "number", "exclusiveMinimum": 0}]}, "number &gt; 0"),
        ({}, "any"),
    ],
)
def test_reference_page_shows_the_type_of_a_field(field: dict[str, Any], said: str) -> None:
    assert f"<td><code>x</code><td>{said}<td>" in page(field)


def test_an_example_is_shown_as_json() -> None:
    found = page({"type": "string", "description": "It.", "examples": ["<a>"]})
    assert "<td>It. <small>For example <code>&quot;&lt;a&gt;&quot;</code></small>" in found


def test_required_fields_come_first_and_text_is_escaped() -> None:
    found = page({"description": "<b> and `c`"}, required=["x"])
    assert "<code>x</code> (required)<td>any<td>&lt;b&gt; and <code>c</code>" in found
    assert "<h1>&lt;t&gt;</h1>" in found
    assert "a &amp; b" in found
    assert "<b>POST</b> <code>/v1/{id}</code></h2><p>Do <code>it</code></p>" in found


@pytest.mark.gate
def test_axe_finds_nothing() -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    text = page({"type": "string", "description": "It, `x`.", "examples": ["a"]}, required=["x"])
    looks: list[dict[str, Any]] = [{}, {"color_scheme": "dark"}, {"viewport": PHONE}]
    with chromium() as browser:
        for look in looks:
            opened = browser.new_page(**look)
            opened.set_content(text)
            found = axe.run(opened).response["violations"]
            assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], look
