"""Small talk, refusals and code."""

from __future__ import annotations

import json
import random

from asyncgen_apps.demo_model import manners


def test_code_compiles() -> None:
    for seed in range(120):
        _, answer = manners.code(random.Random(seed))
        language, _, body = answer.split("```")[1].partition("\n")
        if language == "json":
            assert "name" in json.loads(body)
        else:
            compile(body, "snippet", "exec")


def test_unknown_things_are_not_known() -> None:
    assert all("do not know" in manners.unknown(random.Random(seed))[1] for seed in range(40))


def test_small_talk_is_never_empty() -> None:
    assert all(all(manners.polite(random.Random(seed))) for seed in range(40))
