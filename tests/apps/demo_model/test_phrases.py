"""Requests leave room for their subject, and questions fit every plot."""

from __future__ import annotations

from asyncgen_apps.demo_model import phrases
from asyncgen_apps.demo_model.plots import PLOTS


def test_requests_have_one_subject() -> None:
    assert all(text.count("{x}") == 1 for text in (*phrases.ASKS, *phrases.ANOTHER))


def test_every_plot_has_verbs_and_questions() -> None:
    assert set(phrases.VERBS) == set(phrases.QUESTIONS) == set(PLOTS)
