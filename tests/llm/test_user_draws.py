"""What a user's code draws follows its request's seed, and the app's own draws are not disturbed.

A thread of the app draws from torch's global generator in the middle of every call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
import torch
from torch.nn import functional as F

from asyncgen import LLM
from asyncgen.llm.llm import AsyncLLM
from tests.cases import for_each
from tests.doubles.engine import no_thread_left
from tests.doubles.models import PATIENCE, VOCABULARY, TableModel, byte_tokenizer
from tests.engine.lane.test_foreign_run import tiny

__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio

PROMPT = "abc"
Call = Callable[[], object]
"""Called in the middle of each call of the code."""


def processor(between: Call) -> dict[str, Any]:
    def process(input_ids: Any, scores: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(scores) + torch.rand(scores.shape[-1])
        between()
        return scores + 9 * noise * torch.empty_like(scores).bernoulli_(0.5)

    return {"logits_processor": [process]}


def rows(between: Call) -> dict[str, Any]:
    return processor(between) | {"n": 3, "do_sample": True}


def beams(between: Call) -> dict[str, Any]:
    return processor(between) | {"num_beams": 3}


def criterion(between: Call) -> dict[str, Any]:
    def ends(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        between()
        return torch.rand(len(input_ids)) < 0.15

    return {"stopping_criteria": [ends], "max_new_tokens": 60}


def prefix(between: Call) -> dict[str, Any]:
    def allowed(index: int, ids: Any) -> list[int]:
        between()
        return [int(torch.randint(97, 122, ()))]

    return {"prefix_allowed_tokens_fn": allowed}


def function(between: Call) -> dict[str, Any]:
    def method(model: Any, input_ids: torch.Tensor) -> torch.Tensor:
        first = torch.randint(97, 122, (1, 6))
        between()
        return torch.cat((input_ids, first, torch.randint(97, 122, (1, 6))), dim=1)

    return {"custom_generate": method}


def generator(between: Call) -> dict[str, Any]:
    def method(model: Any, input_ids: torch.Tensor) -> Generator[Any, None, None]:
        for _ in range(12):
            token = torch.randint(97, 122, (1,))
            between()
            yield token

    return {"custom_generate": method}


KINDS = (processor, rows, beams, criterion, prefix, function, generator)


class Noisy(torch.nn.Module):
    """The foreign model, with scores that dropout and noise spoil."""

    def __init__(self, between: Call) -> None:
        super().__init__()
        inner: Any = tiny()
        self.inner, self.between = inner, between
        self.config, self.generation_config = inner.config, inner.generation_config
        self.device = inner.device

    def generate(self, **kwargs: Any) -> Any:
        def spoil(_: Any, __: Any, output: Any) -> Any:
            self.between()
            return F.dropout(output, 0.3, True) + torch.rand_like(output)

        hook = self.inner.lm_head.register_forward_hook(spoil)
        try:
            return self.inner.generate(**kwargs)
        finally:
            hook.remove()


@contextmanager
def app() -> Iterator[Callable[[], list[float]]]:
    """A thread of the app, and a function that lets it draw; it has torch's generator at a seed."""
    before = torch.get_rng_state()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.manual_seed, 0).result(PATIENCE)
        yield lambda: pool.submit(lambda: torch.rand(2).tolist()).result(PATIENCE)
    torch.set_rng_state(before)


def answers(llm: LLM, options: dict[str, Any], seed: int | None = 7) -> list[tuple[int, ...]]:
    options = {"max_new_tokens": 12, "do_sample": False, **options}
    found = llm.generate(PROMPT, seed=seed, **options)
    return [tuple(each.token_ids) for each in found.samples]


def check(model: Any, kind: Callable[[Call], dict[str, Any]], between: Call = int) -> None:
    drawn: list[list[float]] = []
    with LLM(model, tokenizer=byte_tokenizer()) as llm:
        alone = answers(llm, kind(between))
        with app() as draw:
            beside = answers(llm, kind(lambda: drawn.append(draw())))
            drawn.append(draw())
        others = {tuple(answers(llm, kind(between), None)) for _ in range(3)}
    assert beside == alone
    assert others - {tuple(alone)}
    app_draws = torch.Generator().manual_seed(0)
    assert len(drawn) > 1
    assert drawn == [torch.rand(2, generator=app_draws).tolist() for _ in drawn]


@for_each("kind", KINDS)
def test_a_seed_settles_what_code_draws_beside_a_thread_that_draws(
    kind: Callable[[Call], dict[str, Any]],
) -> None:
    check(TableModel(), kind)


@pytest.mark.gate
@for_each("do_sample", [True, False])
def test_a_seed_settles_what_a_foreign_model_draws(do_sample: bool) -> None:
    holder: list[Call] = [int]

    def kind(between: Call) -> dict[str, Any]:
        holder[0] = between
        return {"do_sample": do_sample}

    pytest.importorskip("transformers")
    check(Noisy(lambda: holder[0]()), kind)


def test_draws_of_a_foreign_model_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    model, ids = Noisy(int), torch.tensor([list(PROMPT.encode())])
    with LLM(model, tokenizer=byte_tokenizer()) as llm:
        (found,) = answers(llm, {"do_sample": True})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        mask = torch.ones_like(ids)
        wanted = model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, max_new_tokens=12
        )
    assert list(found) == wanted[0, ids.shape[1] :].tolist()


def test_a_greedy_answer_with_a_processor_that_draws_is_that_of_the_reference() -> None:
    model: Any = TableModel()
    with LLM(model, tokenizer=byte_tokenizer()) as llm:
        (found,) = answers(llm, processor(int))
    ids = torch.tensor([list(PROMPT.encode())])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        wanted = model.generate(ids, max_new_tokens=12, do_sample=False, **processor(int))
    assert list(found) == wanted[0, ids.shape[1] :].tolist()


def test_seeding_inside_a_method_is_the_requests() -> None:
    def method(model: Any, input_ids: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return torch.cat((input_ids, torch.randint(0, VOCABULARY - 9, (1, 6))), dim=1)

    before = torch.get_rng_state()
    with LLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        (found,) = answers(llm, {"custom_generate": method})
    assert torch.equal(before, torch.get_rng_state())
    own = torch.Generator().manual_seed(5)
    assert list(found) == torch.randint(0, VOCABULARY - 9, (6,), generator=own).tolist()


@for_each("kind", [processor, rows, generator])
async def test_requests_that_take_turns_do_not_disturb_each_other(kind: Any) -> None:
    with LLM(TableModel(), tokenizer=byte_tokenizer()) as sync:
        alone = [answers(sync, kind(int) | {"max_new_tokens": 12}, seed) for seed in (1, 2)]
    order: list[int] = []
    posted = threading.Event()

    def step(number: int) -> None:
        order.append(number)
        assert posted.wait(PATIENCE)  # neither may be over before the other has come

    begun: list[int] = []
    found: dict[int, Any] = {}
    async with AsyncLLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        streams = [
            llm.stream(
                PROMPT, **({"do_sample": False, "max_new_tokens": 12, "seed": number + 1} | options)
            )
            for number in range(2)
            for options in [kind(lambda number=number: step(number))]
        ]

        async def read(number: int) -> None:
            async with streams[number] as stream:
                begun.append(number)
                if len(begun) == 2:
                    posted.set()
                async for _ in stream.events():
                    pass
            found[number] = [tuple(each.token_ids) for each in stream.result.samples]

        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(read, number)
    assert [found[0], found[1]] == alone
    assert order not in (sorted(order), sorted(order, reverse=True)), "they took no turns"
