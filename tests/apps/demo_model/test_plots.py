"""Every plot, opening and ending uses only slots that are filled."""

from __future__ import annotations

from string import Formatter

import pytest

from asyncgen_apps.demo_model import frames
from asyncgen_apps.demo_model.plots import PLOTS

SLOTS = set(
    "intro h he him his kintro k kname khe khim khis ao o noun p pl q ql day time weather mood "
    "feel treat trouble".split()
)


def _slots(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("plot", PLOTS)
def test_plots_use_known_slots_and_bring_in_everything(plot: str) -> None:
    for stage in PLOTS[plot]:
        assert all(_slots(text) <= SLOTS for text in stage)
        assert len(set(stage)) == len(stage)
    for slot in ("ao", "kintro"):
        assert any(all(slot in _slots(text) for text in stage) for stage in PLOTS[plot])


def test_every_plot_can_be_told_in_one_sentence() -> None:
    assert set(frames.SUMMARIES) == set(frames.SHORT) == set(PLOTS)
