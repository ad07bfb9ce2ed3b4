"""Side of ``bench structured``: streams of structured output, beside free ones.

All runs are of one engine in one process, so that two of them differ in the shape alone. Times are
in seconds.
"""

from __future__ import annotations

import random
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen_apps.bench.jobs import Job, Run
from asyncgen_apps.bench.sides.llm import LLMSide, all_at_once

if TYPE_CHECKING:
    from collections.abc import Callable


RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "count": {"type": "integer", "minimum": 0, "maximum": 9999},
        "ratio": {"type": "number"},
    },
    "required": ["name", "tags", "count", "ratio"],
    "additionalProperties": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "free": {},
    "records": {"json_schema": {"type": "array", "items": RECORD, "minItems": 200}},
    "text": {"json_schema": {"type": "string", "minLength": 8000}},
}
"""Shapes of answers; none ends before its length. Keys and punctuation of ``records`` are forced;
nothing of ``text`` is: each token takes a step and a mask."""

ENDLESS = 2_000
"""Tokens of a stream that runs beside measured ones, and is left when they are done."""

COMPILED_TOKENS = 2
LETTERS = "abcdefghijklmnop"


class StructuredStreams(LLMSide):
    """Side that reads streams of one ``AsyncLLM``, each in a task."""

    async def load(self, folder: str, dtype: str, streams: int) -> None:
        """Open the model, and compile a first grammar of each shape.

        Args:
            folder: A checkpoint.
            dtype: Name of the type to compute in.
            streams: Most streams at a time.
        """
        await self._open(folder, dtype=dtype, device="cpu", max_running=streams)
        for shape in SHAPES.values():
            await self._llm.generate([1, 2, 3], max_new_tokens=4, **shape)

    async def run(self, job: Job, shape: str, temperature: float) -> Run:
        """Answer all prompts at once; each answer must have its full length.

        Args:
            job: Free answers.
            shape: Name in ``SHAPES``, which the answers follow instead.
            temperature: Temperature of the draws; 0 takes the likeliest token.
        """
        start = perf_counter()
        async with anyio.create_task_group() as tasks:
            for seed, prompt in enumerate(job.prompts):
                tasks.start_soon(self._complete, prompt, _given(job, shape, temperature, seed))
        return Run(perf_counter() - start)

    async def beside(
        self, job: Job, others: list[list[int]], shape: str, temperature: float
    ) -> Run:
        """Answer free prompts beside others of a shape; return the times of the free ones.

        The others have begun before, and go on until the last free one has ended.

        Args:
            job: Free answers.
            others: Prompts of the answers that follow the shape.
            shape: As of `run`.
            temperature: As of `run`.
        """
        lengths = {name: ENDLESS for name in job.options if name.endswith("new_tokens")}
        endless = Job(others, {**job.options, **lengths})
        begun = 0
        ready = anyio.Event()

        async def other(prompt: list[int], given: dict[str, Any]) -> None:
            nonlocal begun
            async with self._llm.stream(prompt, **given) as stream:
                is_first = True
                async for _ in stream:
                    begun += is_first
                    is_first = False
                    if begun == len(others):
                        ready.set()

        async with anyio.create_task_group() as crowd:
            for seed, prompt in enumerate(others):
                crowd.start_soon(other, prompt, _given(endless, shape, temperature, seed))
            await ready.wait()
            found = await self.run(job, "free", temperature)
            crowd.cancel_scope.cancel()
        return found

    async def gaps(self, job: Job, compiled: str) -> dict[str, object]:
        """Read free streams, and note the time between their tokens.

        Args:
            job: Free answers.
            compiled: Name in ``WORST`` of the schemas that are compiled meanwhile; empty for none.
        """
        found: list[float] = []
        count = 0

        async def read(prompt: list[int]) -> None:
            times: list[float] = []
            async with self._llm.stream(prompt, **job.options) as stream:
                async for event in stream.events():
                    times += [perf_counter()] * len(event.token_ids)
            # Tokens of one wake-up came at one time, and the next token waited for all of them.
            found.extend(after - before for before, after in pairwise(times))

        async def compile_all() -> None:
            nonlocal count
            while True:
                schema = WORST[compiled](random.Random(count))
                given = {"json_schema": schema, "max_new_tokens": COMPILED_TOKENS}
                await self._llm.generate([1, 2, 3], **given)
                count += 1

        async with anyio.create_task_group() as compiling:
            if compiled:
                compiling.start_soon(compile_all)
            while not found or (compiled and not count):  # short answers end before one is compiled
                await all_at_once(read, job.prompts)
            compiling.cancel_scope.cancel()
        return {"gaps": found, "compiled": count}

    async def _complete(self, prompt: list[int], given: dict[str, Any]) -> None:
        """Read one answer as text; it must have its full length."""
        assert await self._read(prompt, given) == given["max_new_tokens"]


def _given(job: Job, shape: str, temperature: float, seed: int) -> dict[str, Any]:
    """Return the parameters of one stream."""
    given = {**job.options, **SHAPES[shape]}
    if temperature:
        given |= {"temperature": temperature, "seed": seed, "do_sample": True}
    if shape != "free":
        given.pop("min_new_tokens", None)
    return given


def _word(draw: random.Random) -> str:
    return "".join(draw.choices(LETTERS, k=6))


def _optional(draw: random.Random) -> object:
    """Make an object of as many optional keys as are allowed."""
    properties = {_word(draw): {"type": "integer"} for _ in range(490)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _patterns(draw: random.Random) -> object:
    """Make as many texts with patterns as are allowed."""
    words = ((_word(draw), _word(draw), _word(draw)) for _ in range(600))
    texts = {
        key: {"type": "string", "pattern": f"^.*{first}.*{last}$"} for key, first, last in words
    }
    return {"type": "object", "properties": texts, "required": list(texts)}


def _keys(draw: random.Random) -> object:
    """Make keys by patterns that exclude each other."""
    keys = {f"^{_word(draw)}.*$": {"type": "integer"} for _ in range(100)}
    return {"type": "object", "patternProperties": keys}


WORST: dict[str, Callable[[random.Random], object]] = {
    "optional": _optional,
    "patterns": _patterns,
    "keys": _keys,
}
"""Schemas close to the limits, each with new words, so that none was compiled before."""
