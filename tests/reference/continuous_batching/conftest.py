"""Fixtures of the tests of managers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.doubles.models import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Lets forward passes through; open at the end, so that threads can leave."""
    gate = Gate()
    yield gate
    gate.open()
