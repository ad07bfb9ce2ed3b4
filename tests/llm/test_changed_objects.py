"""What a user changes in an object of theirs while its request runs counts as in `generate`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.logits.base import definition_of
from asyncgen.generation.stopping.criteria import EosTokenCriteria, MaxTimeCriteria
from asyncgen.llm.llm import LLM
from tests.doubles.models import TableModel, byte_tokenizer
from tests.engine.batches import Bench, ids_of
from tests.engine.sampling.test_followed import FIXED, other_value
from tests.generation.logits.test_all_processors import MADE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT = "abcab"
IDS = torch.tensor([list(PROMPT.encode())])
NEW = 16


def generated(model: TableModel, **given: Any) -> list[int]:
    """New tokens of ``model.generate``."""
    ids: Any = model.generate(IDS, **given)
    return ids[0, IDS.shape[1] :].tolist()


@contextmanager
def neighbours(llm: LLM) -> Iterator[None]:
    """Requests that come and go all the time."""
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            llm.generate("xy", max_new_tokens=2)

    with ThreadPoolExecutor(2) as pool:
        threads = [pool.submit(come_and_go) for _ in range(2)]
        try:
            yield
        finally:
            stop.set()
            for each in threads:
                each.result()


def changing(own: Any, change: Callable[[Any], object], first: int = 4) -> Callable[..., Any]:
    """A criterion that changes an object from some length on, at every token."""

    def criterion(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if input_ids.shape[1] - IDS.shape[1] >= first:
            change(own)
        return torch.zeros(len(input_ids), dtype=torch.bool)

    return criterion


def change_all(own: Any) -> None:
    """Change every attribute that can be changed."""
    for name, value in list(vars(own).items()):
        if not name.startswith("_") and name not in FIXED | {"filter_value"}:
            other = other_value(value)
            if other is not None:
                setattr(own, name, other)


def change_penalty(own: Any) -> None:
    own.penalty += 0.7


def request(name: str, change: Callable[[Any], object]) -> dict[str, Any]:
    """Parameters with an object of the class, which changes."""
    own = MADE[name](1)
    return {
        "logits_processor": [own],
        "stopping_criteria": [changing(own, change)],
        "do_sample": False,
        "max_new_tokens": NEW,
    }


@pytest.mark.gate
def test_every_processor_is_followed_as_by_generate_alone_and_beside_others() -> None:
    model = TableModel()
    named = [name for name, make in MADE.items() if definition_of(make(1)) is not None]
    with LLM(model, tokenizer=byte_tokenizer()) as llm:

        def tokens(name: str) -> list[int]:
            return list(llm.generate(PROMPT, **request(name, change_all)).token_ids)

        wanted = {name: generated(model, **request(name, change_all)) for name in named}
        assert {name: tokens(name) for name in named} == wanted
        with neighbours(llm):
            assert {name: tokens(name) for name in named} == wanted


def test_an_annealed_temperature_draws_the_same_beside_others() -> None:
    def tokens(llm: LLM) -> tuple[int, ...]:
        own = asyncgen.TemperatureLogitsWarper(0.2)

        def heat(own: Any) -> None:
            own.temperature *= 1.6

        return llm.generate(
            PROMPT,
            logits_processor=[own],
            stopping_criteria=[changing(own, heat, 0)],
            seed=3,
            max_new_tokens=12,
        ).token_ids

    with LLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        alone = tokens(llm)
        with neighbours(llm):
            assert tokens(llm) == alone


def test_a_tensor_that_is_written_to_is_followed() -> None:
    """One of a user's own, and one that they learn."""

    def request(make: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
        own: Any = asyncgen.TemperatureLogitsWarper(0.2)
        own.temperature = make(torch.tensor(0.2))
        heating = changing(own, lambda own: own.temperature.mul_(1.6), 0)
        given = {"logits_processor": [own], "stopping_criteria": [heating]}
        return given | {"do_sample": True, "seed": 3, "max_new_tokens": NEW}

    def learned(value: torch.Tensor) -> torch.Tensor:
        return torch.nn.Parameter(value, requires_grad=False)

    def served(*requests: dict[str, Any]) -> list[list[int]]:
        bench = Bench(TableModel(eos_token_id=None))
        sinks = [bench.add(PROMPT, **each)[1] for each in requests]
        bench.run()
        return [ids_of(sink) for sink in sinks]

    constant = {"seed": 3, "max_new_tokens": NEW, "temperature": 0.2}
    makes: list[Callable[[torch.Tensor], torch.Tensor]] = [torch.Tensor.clone, learned]
    wanted = served(request(torch.Tensor.clone))
    assert served(request(learned)) == wanted != served(constant)
    assert served(*map(request, (*makes, *makes))) == 4 * wanted


@pytest.mark.parametrize("beams", [1, 3])
def test_a_penalty_is_followed_also_with_beams(beams: int) -> None:
    name, model = "RepetitionPenaltyLogitsProcessor", TableModel()
    wanted = generated(model, **request(name, change_penalty), num_beams=beams)
    with LLM(model, tokenizer=byte_tokenizer()) as llm:
        result = llm.generate(PROMPT, **request(name, change_penalty), num_beams=beams)
    assert list(result.token_ids) == wanted


def test_a_penalty_is_followed_over_a_preemption() -> None:
    name, model = "FrequencyPenaltyLogitsProcessor", TableModel()
    wanted = generated(model, **request(name, change_penalty))
    bench = Bench(model, pages=9)
    sinks = [bench.add(PROMPT, **request(name, change_penalty))[1] for _ in range(3)]
    bench.run()
    assert bench.batch.scheduler.num_preemptions
    assert [ids_of(sink) for sink in sinks] == [wanted] * 3


def test_the_users_time_and_end_tokens_are_followed() -> None:
    model = TableModel(eos_token_id=None)
    expected = generated(model, do_sample=False, max_new_tokens=NEW)

    def end_by(own: Any, change: Callable[[Any], object]) -> dict[str, Any]:
        criteria = [changing(own, change), own]
        return {"stopping_criteria": criteria, "do_sample": False, "max_new_tokens": NEW}

    def end_now(own: Any) -> None:
        own.eos_token_id = torch.tensor([expected[6]])

    def write_end(own: Any) -> None:
        own.eos_token_id.fill_(expected[6])

    def time_out(own: Any) -> None:
        own.max_time = 0.0

    cases: list[tuple[Callable[[], Any], Callable[[Any], object], str]] = [
        (lambda: EosTokenCriteria(1), end_now, "stop"),
        (lambda: EosTokenCriteria(1), write_end, "stop"),
        (lambda: MaxTimeCriteria(1e3), time_out, "time"),
    ]
    with LLM(model, tokenizer=byte_tokenizer()) as llm:
        for make, change, reason in cases:
            result = llm.generate(PROMPT, **end_by(make(), change))
            wanted = generated(model, **end_by(make(), change))
            assert list(result.token_ids) == wanted and len(wanted) < NEW
            assert result.finish_reason == reason


def test_of_a_configuration_the_values_at_the_start_count() -> None:
    def request(*, is_changed: bool) -> dict[str, Any]:
        config = GenerationConfig(do_sample=False, repetition_penalty=1.2, max_new_tokens=NEW)

        def write(own: Any) -> None:
            own.update(repetition_penalty=9.0, max_new_tokens=6, max_length=9, eos_token_id=1)
            own.update(suppress_tokens=list(range(200)), do_sample=True, temperature=9.0)

        criterion = changing(config, write if is_changed else bool, 0)
        return {"generation_config": config, "stopping_criteria": [criterion]}

    model = TableModel()
    with LLM(model, tokenizer=byte_tokenizer()) as llm:
        wanted = llm.generate(PROMPT, **request(is_changed=False)).token_ids
        assert len(wanted) == NEW
        assert llm.generate(PROMPT, **request(is_changed=True)).token_ids == wanted
    assert generated(model, **request(is_changed=True)) == list(wanted)
