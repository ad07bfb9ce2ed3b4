"""The typed parameters are the documented ones, and ours."""

from __future__ import annotations

from asyncgen.engine.requests.names import ARGUMENTS, NOT_HERE, OWN
from asyncgen.engine.requests.stream_params import StreamParams
from asyncgen.generation.config.fields import FIELDS, GENERATE_ARGUMENTS


def test_each_field_has_a_place() -> None:
    fields = {field.name for field in FIELDS}
    known = set(StreamParams.__annotations__)
    assert fields == (fields & known) | (fields & set(NOT_HERE))
    assert known - fields == OWN | ARGUMENTS


def test_each_documented_argument_has_a_place() -> None:
    assert set(GENERATE_ARGUMENTS) <= set(StreamParams.__annotations__) | set(NOT_HERE)
