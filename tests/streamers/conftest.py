"""Fixtures of the streamer tests."""

from __future__ import annotations

import pytest

from tests.streamers.cases import KINDS, Case, case_of


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest) -> Case:
    """Every kind of tokenizer."""
    return case_of(request.param)


@pytest.fixture
def byte_level() -> Case:
    """A byte-level tokenizer."""
    return case_of("byte_level")
