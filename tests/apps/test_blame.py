"""Processors are known to clients by their parameters."""

from __future__ import annotations

import pytest

import asyncgen
from apps.blame import PARAMETERS, parameter_of
from asyncgen import InvalidScoresError, StreamParams


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_processor_has_a_parameter(name: str) -> None:
    assert getattr(asyncgen, name).__name__ == name
    assert PARAMETERS[name] in StreamParams.__annotations__
    assert parameter_of(InvalidScoresError(name, "no token is left")) == PARAMETERS[name]


@pytest.mark.parametrize("name", [None, "Mine"])
def test_nobody_alone_is_to_blame(name: str | None) -> None:
    assert parameter_of(InvalidScoresError(name, "no token is left")) is None
