"""Streams side by side: all of them, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from asyncgen import AsyncLLM, InvalidRequestError
from asyncgen_apps.openai_http.request_streams import RequestStreams
from asyncgen_apps.openai_http.translate import PlannedStream
from tests.doubles.models import TableModel, byte_tokenizer

if TYPE_CHECKING:
    from asyncgen import TokenEvent

pytestmark = pytest.mark.anyio


def llm(model: TableModel) -> AsyncLLM:
    return AsyncLLM(model, tokenizer=byte_tokenizer())


async def nothing(index: int, event: TokenEvent) -> None:
    """Read on."""


async def test_choices_in_order_and_prompts_counted_once() -> None:
    parts = (
        PlannedStream([1, 2], {"max_new_tokens": 3, "do_sample": False}, 0, 1),
        PlannedStream([1, 2], {"max_new_tokens": 3, "do_sample": False}, 1, 1, counts_prompt=False),
        PlannedStream([3], {"max_new_tokens": 3, "temperature": 1.0, "n": 2, "seed": 1}, 2, 2),
    )
    texts = ["", "", "", ""]

    async def take(index: int, event: TokenEvent) -> None:
        texts[index] += event.text

    async with llm(TableModel()) as opened, RequestStreams(opened, parts) as job:
        await job.read(take)
        assert texts == [sample.text for sample in job.samples()]
        assert texts[0] == texts[1]
        assert (job.usage().prompt_tokens, job.usage().completion_tokens) == (3, 12)


async def test_one_that_is_refused_starts_none() -> None:
    model = TableModel()
    async with llm(model) as opened:
        parts = (
            PlannedStream([1], {"max_new_tokens": 3}, 0, 1),
            PlannedStream([1], {"max_new_tokens": -3}, 1, 1),
        )
        with pytest.raises(InvalidRequestError):
            async with RequestStreams(opened, parts):
                pass
        await opened.generate([5], max_new_tokens=1)
        assert model.num_forwards <= 1 + 3


async def test_a_failure_is_raised_as_it_is() -> None:
    async with llm(TableModel()) as opened:
        parts = tuple(PlannedStream([1], {"max_new_tokens": 50}, index, 1) for index in range(3))

        async def take(index: int, event: TokenEvent) -> None:
            if index == 1:
                raise KeyError("as it is")

        async with RequestStreams(opened, parts) as job:
            with pytest.raises(KeyError):
                await job.read(take)
