"""The digest of a request: in pieces, of the bytes that JSON would have."""

from __future__ import annotations

import json
from typing import Any

from asyncgen_apps.websocket.messages import Generate
from asyncgen_apps.websocket.resume_tokens import digest, digest_large, pieces
from tests.cases import for_each


@for_each(
    "value",
    [
        None,
        True,
        1.5,
        -3,
        "",
        'a "quoted" \\ \u00e9 \U0001f98a \ud83d',
        "\U0001f98a\n" * 50_000,
        [],
        {},
        [[]],
        list(range(5000)),
        [*range(1500), None, "x", *range(1500)],
        [True, 1, 0.5] * 700,
        [[1, 2], [], [3, [4.0, "b"]]],
        {"b": [1, {"z": None, "a": {}}], "a": "x", "\u00e9": [[-1.0]] * 1100},
    ],
)
def test_pieces_are_the_text_of_json(value: Any) -> None:
    assert "".join(pieces(value)) == json.dumps(value, sort_keys=True)


def test_no_piece_is_long() -> None:
    message = {"role": "user", "content": "\u00e9" * 1_000_000}
    source = [[message] * 2, list(range(300_000))]
    assert max(map(len, pieces(source))) < 2**19


def test_a_digest_knows_no_order() -> None:
    params: dict[str, Any] = {"seed": 1, "generated_ids": list(range(20_000)), "stop": None}
    one = Generate(id="a", token_ids=list(range(100_000)), params=params)
    other = Generate(
        id="b",
        token_ids=list(range(100_000)),
        params={name: params[name] for name in ("generated_ids", "seed")},
    )
    assert digest(one) == digest_large(other) != digest(Generate(id="a", prompt="x", params=params))
