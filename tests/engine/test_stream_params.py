"""The type of a stream's keywords can be read at run time and by a type checker."""

from __future__ import annotations

import asyncgen
from asyncgen.engine.stream_params import StreamParams


def test_it_is_public_and_every_key_is_optional() -> None:
    assert asyncgen.StreamParams is StreamParams
    assert StreamParams.__required_keys__ == frozenset()
    params: StreamParams = {"temperature": 0.5, "stop": ["."], "n": 2}
    assert set(params) <= set(StreamParams.__annotations__)
