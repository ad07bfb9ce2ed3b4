"""The place in the queue, from counters alone."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen import EngineDiedError
from asyncgen_apps.gradio_chat.queue_position import QueuePosition
from tests.apps.gradio_chat.doubles import ScriptedModel

pytestmark = pytest.mark.anyio


async def test_those_before_us_are_taken_up_first() -> None:
    model = ScriptedModel(waiting=2, taken_up=10)
    place = await QueuePosition.last(model)
    model.waiting = 5  # ours, and two after us
    assert await place.ahead() == 2
    model.waiting, model.taken_up = 4, 11
    assert await place.ahead() == 1
    model.waiting, model.taken_up = 3, 12
    assert await place.ahead() == 0
    model.waiting, model.taken_up = 2, 13
    assert await place.ahead() is None


async def test_cancelled_requests_do_not_count_as_ahead() -> None:
    model = ScriptedModel(waiting=3)
    place = await QueuePosition.last(model)
    model.waiting = 1
    assert await place.ahead() == 0


async def test_an_empty_queue_is_no_queue() -> None:
    assert await (await QueuePosition.last(ScriptedModel())).ahead() is None


async def test_a_dead_engine_has_none() -> None:
    class Dying(ScriptedModel):
        async def measure(self) -> Any:
            if self.taken_up:
                raise EngineDiedError("gone")
            return await super().measure()

    model = Dying(waiting=1)
    place = await QueuePosition.last(model)
    model.taken_up = 1
    assert await place.ahead() is None
