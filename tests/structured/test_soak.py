"""Random models at temperature 1.5 answer schemas: what ends with ``"stop"`` is always valid."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import jsonschema_rs
import pytest

import asyncgen
from asyncgen.errors import InvalidRequestError
from asyncgen.llm.llm import AsyncLLM
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.models.build import random_config, random_model
from tests.structured.schemas import HARD, random_schema

if TYPE_CHECKING:
    from asyncgen.types import Completion


def make_llm(seed: int) -> AsyncLLM:
    """A tiny model of random weights that speaks the bundled model's tokens, in few pages."""
    sizes = {"vocab_size": 2048, "max_position_embeddings": 512, "eos_token_id": 2}
    model = PreTrainedModel(random_model(random_config("llama", **sizes), seed))
    tokenizer = asyncgen.AutoTokenizer.from_pretrained("demo")
    position = 2 * 3 * 2 * 8 * 4  # keys and values, layers, heads, their size, float32
    return AsyncLLM(
        model, tokenizer=tokenizer, max_running=16, page_size=16, kv_cache_memory=600 * position
    )


async def answer_all(schemas: list[Any], seed: int) -> tuple[Counter[str], list[str], int]:
    """Answer schemas side by side; count how they end, and tell what is wrong."""
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    limiter = anyio.CapacityLimiter(24)

    async def ask(llm: AsyncLLM, number: int, schema: Any) -> None:
        given: dict[str, Any] = {"seed": number, "temperature": 1.5, "max_new_tokens": 200}
        if number % 7 == 0:
            given |= {"logprobs": True}
        async with limiter:
            try:
                found = await llm.generate([number % 2000 + 8] * 9, json_schema=schema, **given)
            except InvalidRequestError as error:
                assert error.parameter == "json_schema"
                ends[f"refused: {error.allowed[:40]}"] += 1
                return
        ends[found.finish_reason] += 1
        problem = _problem(schema, found)
        if problem is not None:
            wrong.append(f"{json.dumps(schema)}: {found.text!r}: {problem}")

    async def free(llm: AsyncLLM) -> None:
        while len(wrong) < 9:  # until it is cancelled
            async with limiter:
                await llm.generate([9, 9], temperature=1.5, max_new_tokens=90)

    async with make_llm(seed) as llm:
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as asking:
                tasks.start_soon(free, llm)
                for number, schema in enumerate(schemas):
                    asking.start_soon(ask, llm, number, schema)
            tasks.cancel_scope.cancel()
        return ends, wrong, llm.metrics().preemptions


def _problem(schema: Any, found: Completion) -> str | None:
    if found.finish_reason != "stop":
        return None if found.parsed is None and found.parse_error else "parsed though unfinished"
    if found.parse_error is not None:
        return None if "beyond the range of a float" in found.parse_error else found.parse_error
    try:
        value = json.loads(found.text)
        # As text, which is what the model was asked with: a float would be compared by its bits,
        # and 1e100 is not quite 10**100.
        jsonschema_rs.validator_for(json.dumps(schema), validate_formats=True).validate(value)
    except ValueError as error:
        return str(error)
    return None if value == found.parsed else "another value"


def test_hard_schemas_are_kept_to_or_refused() -> None:
    schemas = [each for number, each in enumerate(HARD) if number % 2]
    ends, wrong, _ = anyio.run(answer_all, schemas, 0)
    assert not wrong
    assert ends["stop"] > len(schemas) // 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_schemas_are_kept_to_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    schemas = HARD + [random_schema(rng) for _ in range(1000 - len(HARD))]
    ends, wrong, preemptions = anyio.run(answer_all, schemas, seed)
    assert not wrong, "\n".join(wrong)
    assert ends["stop"] > 700
    assert preemptions > 20
