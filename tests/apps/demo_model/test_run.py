"""The settings of a run."""

from __future__ import annotations

import pytest

from asyncgen_apps.demo_model.run import Run


def test_the_rate_warms_up_holds_and_falls() -> None:
    run = Run(seed=1, steps=100, warmup=10, decay_share=0.2)
    assert run.rate(0) == pytest.approx(0.1)
    assert run.rate(50) == 1.0
    assert run.rate(90) == pytest.approx(0.5)
    assert run.rate(100) == 0.0
