"""The place in the queue, from counters alone."""

from __future__ import annotations

from typing import Any

from asyncgen import EngineDiedError
from asyncgen_apps.gradio_chat.waiting import QueuePosition
from tests.apps.gradio_chat.doubles import ScriptedModel


def test_those_before_us_are_taken_up_first() -> None:
    model = ScriptedModel(waiting=2, taken_up=10)
    place = QueuePosition(model)
    model.waiting = 5  # ours, and two after us
    assert place.ahead() == 2
    model.waiting, model.taken_up = 4, 11
    assert place.ahead() == 1
    model.waiting, model.taken_up = 3, 12
    assert place.ahead() == 0
    model.waiting, model.taken_up = 2, 13
    assert place.ahead() is None


def test_a_cancelled_neighbour_does_not_count() -> None:
    model = ScriptedModel(waiting=3)
    place = QueuePosition(model)
    model.waiting = 1
    assert place.ahead() == 0


def test_an_empty_queue_is_no_queue() -> None:
    assert QueuePosition(ScriptedModel()).ahead() is None


def test_a_dead_engine_has_none() -> None:
    class Dying(ScriptedModel):
        def metrics(self) -> Any:
            if self.taken_up:
                raise EngineDiedError("gone")
            return super().metrics()

    model = Dying(waiting=1)
    place = QueuePosition(model)
    model.taken_up = 1
    assert place.ahead() is None
