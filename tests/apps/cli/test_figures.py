from __future__ import annotations

from dataclasses import replace

import pytest

from asyncgen import Timing
from asyncgen_apps.cli.figures import seconds, statistics_line
from tests.apps.cli.doubles import completion


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0123, "12 ms"), (0.25, "250 ms"), (3.14159, "3.14 s"), (90, "1.5 min")]
)
def test_durations_have_a_fitting_unit(value: float, shown: str) -> None:
    assert seconds(value) == shown


def test_the_line_says_tokens_times_speed_and_reason() -> None:
    assert statistics_line(completion("x")) == (
        "3 tokens · first after 250 ms · 42.0 tokens/s · prompt 7 tokens · ended by stop"
    )


def test_what_was_not_measured_is_left_out() -> None:
    stopped = replace(completion("", "cancelled", 0), timing=Timing(0.0, None, 0.1, None))
    assert statistics_line(stopped) == "0 tokens · prompt 7 tokens · ended by cancelled"
