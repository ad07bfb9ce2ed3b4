"""A reader that is slower than its model is let be between tokens, but not behind the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from asyncgen.llm import reader_wait as waiting
from asyncgen.llm.llm import LLM, AsyncLLM
from tests.doubles.engine import in_thread, no_thread_left
from tests.doubles.models import PATIENCE, Gate, TableModel, byte_tokenizer

if TYPE_CHECKING:
    import torch

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio

SCRIPT = "abcdefghij" * 40


@pytest.fixture(autouse=True)
def slow_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that were woken twice come back by themselves after hours."""
    monkeypatch.setattr(waiting, "READER_PACE", 20_000.0)


def options(**more: Any) -> dict[str, Any]:
    """Return the options of a model object."""
    return {"tokenizer": byte_tokenizer(), **more}


def model(*, poisoned: bool = False, **more: Any) -> TableModel:
    """A model that says its script, or fails when it is half through."""

    def fail(ids: object, positions: torch.Tensor) -> None:
        if int(positions.max()) == 100:
            raise ZeroDivisionError("of this test")

    if poisoned:
        more["hook"] = fail
    return TableModel(script=SCRIPT, prompt_length=3, **more)


@pytest.mark.parametrize("samples", [1, 2])
async def test_a_task_reads_the_end_when_it_is_there(samples: int) -> None:
    with anyio.fail_after(PATIENCE):
        async with AsyncLLM(model(), **options()) as llm:
            stream = llm.stream(
                "abc", max_new_tokens=200, num_return_sequences=samples, do_sample=samples > 1
            )
            tokens = [token async for event in stream.events() for token in event.token_ids]
    assert len(tokens) == 200 * samples


async def test_a_task_hears_of_a_failure_when_it_happens() -> None:
    with anyio.fail_after(PATIENCE):
        async with AsyncLLM(model(poisoned=True), **options()) as llm:
            with pytest.raises(ZeroDivisionError):
                async for _ in llm.stream("abc", max_new_tokens=200):
                    pass


async def test_a_task_reads_to_a_cancel_that_came_from_elsewhere() -> None:
    gate = Gate()
    with anyio.fail_after(PATIENCE):
        async with AsyncLLM(model(hook=gate), **options()) as llm:
            stream = llm.stream("abc", max_new_tokens=200)
            texts: list[str] = []

            async def read() -> None:
                texts.extend([text async for text in stream])

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                gate.allow(20)
                await in_thread(lambda: gate.wait_arrived(21))
                await in_thread(stream.cancel)
                gate.open()
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.text == "".join(texts)


def test_a_thread_reads_the_end_when_it_is_there() -> None:
    with LLM(model(), **options()) as llm:
        assert len("".join(llm.stream("abc", max_new_tokens=200))) == 200


def test_a_thread_hears_of_a_failure_when_it_happens() -> None:
    with LLM(model(poisoned=True), **options()) as llm, pytest.raises(ZeroDivisionError):
        for _ in llm.stream("abc", max_new_tokens=200):
            pass
