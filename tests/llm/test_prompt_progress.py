"""A stream tells how much of its prompt has been read."""

from __future__ import annotations

import pytest

from asyncgen import AsyncLLM
from tests.doubles.models import Gate, TableModel, byte_tokenizer

pytestmark = pytest.mark.anyio


async def test_a_long_prompt_is_read_chunk_by_chunk() -> None:
    gate = Gate()
    model = TableModel(hook=gate, context_length=4096)
    async with AsyncLLM(model, tokenizer=byte_tokenizer(), prefill_chunk_size=16) as llm:
        try:
            stream = llm.stream(list(range(1, 51)), max_new_tokens=2)
            with pytest.raises(RuntimeError, match="has not started"):
                assert stream.prompt_progress
            async with stream:
                for chunks in range(4):
                    gate.wait_arrived(chunks + 1)
                    total, cached, processed, seconds = stream.prompt_progress
                    assert (total, cached, processed) == (50, 0, 16 * chunks)
                    assert seconds > 0
                    gate.allow(1)
                gate.open()
                async for _ in stream.events():
                    assert stream.prompt_progress[:3] == (50, 0, 50)
            done = stream.prompt_progress
            assert done == stream.prompt_progress and stream.prompt_progress.processed == 50
            again = llm.stream(list(range(1, 51)), max_new_tokens=2)
            async for _ in again.events():
                pass
            assert again.prompt_progress.cached == again.result.usage.cached_tokens > 0
        finally:
            gate.open()


async def test_a_request_that_runs_alone_tells_its_end() -> None:
    async with AsyncLLM("demo", num_threads=1) as llm:
        stream = llm.stream("Once upon a time", max_new_tokens=2, num_beams=2)
        async for _ in stream.events():
            pass
        total, cached, processed, _ = stream.prompt_progress
        assert (cached, processed) == (0, total)
