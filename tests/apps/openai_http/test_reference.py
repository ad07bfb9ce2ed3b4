"""A page for reading, made of a document for programs."""

from __future__ import annotations

import json
import re
import shlex
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen_apps.openai_http.reference import reference_page
from tests.apps.gradio_chat.browsing import chromium
from tests.cases import for_each

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

PHONE = {"width": 390, "height": 844}
INTEGERS = {"type": "array", "items": {"type": "integer"}}


def page(field: dict[str, Any], model: str = "m", has_keys: bool = False, **more: Any) -> str:
    """The page of one path with one field."""
    body = {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}
    schemas = {"Body": {"properties": {"x": field}, **more}, "Part": {"properties": {"type": {}}}}
    operation = {"summary": "Do `it`", "requestBody": {"content": body}}
    return reference_page(
        {
            "info": {"title": "<t>", "description": "a & b"},
            "paths": {"/v1/{id}": {"post": operation}},
            "components": {"schemas": schemas},
        },
        "http://<here>:1",
        model,
        has_keys,
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
    assert '<a href="#post-v1-{id}">' in found and '<h2 id="post-v1-{id}">' in found


def test_a_bound_of_the_storage_of_numbers_is_not_shown() -> None:
    field = {"type": "integer", "minimum": -(2.0**63), "exclusiveMaximum": 2.0**64}
    assert "<td><code>x</code><td>integer<td>" in page(field)


def test_the_calls_that_the_page_shows_are_answered(demo: Running) -> None:
    """Each names this server and its model."""
    shown = unescape(demo.request("GET", "/docs").body.decode())
    calls = re.findall(r"<pre[^>]*><code>(curl .*?)</code></pre>", shown, re.DOTALL)
    assert len(calls) == 6 and "Streams over WebSocket" in shown
    for call in calls:
        words = shlex.split(call)
        scheme, _, host, path = words[1].split("/", 3)
        assert (scheme, host) == ("http:", f"127.0.0.1:{demo.port}")
        got = demo.request("POST", f"/{path}", json.loads(words[-1]))
        assert got.status == 200, (call, got.body)


def test_a_call_has_the_key_that_is_needed_and_quotes_for_a_shell() -> None:
    field = {"type": "string", "examples": ["it's"]}
    found = unescape(page(field, "it's", has_keys=True))
    assert "Authorization: Bearer KEY" in found
    call = re.search(r"<code>(curl .*?)</code>", found, re.DOTALL)
    assert call is not None and ' -H "Authorization: Bearer $ASYNCGEN_API_KEY"' in call[1]
    assert json.loads(shlex.split(call[1])[-1]) == {"x": "it's"}
    assert "Authorization" not in page(field)


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
