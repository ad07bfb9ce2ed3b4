"""The order is one: for any set of processors, alone, in the batch, and as it is documented."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.engine.sampling import sampler as module
from asyncgen.engine.sampling.sampler import BatchPlan, BatchSampler, ScoreBatch
from asyncgen.engine.sampling.shortlist import plan_row
from asyncgen.generation.logits import base as definitions_module
from asyncgen.generation.logits.base import (
    Definition,
    LogitsProcessor,
    LogitsProcessorList,
    Stage,
    definition_of,
    processor_classes,
)
from asyncgen.generation.logits.batched import Ban, Columns
from asyncgen.generation.logits.filters import TemperatureLogitsWarper
from asyncgen.generation.logits.penalties import RepetitionPenaltyLogitsProcessor
from tests.doubles.models import EOS, VOCABULARY
from tests.engine.making import request_for, sequence_of

if TYPE_CHECKING:
    from asyncgen.engine.batch.sequence import Sequence
    from asyncgen.engine.sampling.shortlist import RankedProcessor

ON: dict[str, Any] = {
    "sequence_bias": [[[1, 2], 0.5], [[7], -1.0]],
    "encoder_repetition_penalty": 1.4,
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 2,
    "bad_words_ids": [[5], [6, 7]],
    "min_length": 9,
    "prefix_allowed_tokens_fn": lambda prompt, ids: list(range(int(ids[-1]) % 7, 200)),
    "forced_eos_token_id": [EOS, 7],
    "remove_invalid_values": True,
    "exponential_decay_length_penalty": (1, 1.1),
    "suppress_tokens": [4, 9],
    "begin_suppress_tokens": [6],
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "temperature": 0.5,
    "top_h": 0.8,
    "top_k": 30,
    "top_p": 0.9,
    "min_p": 0.01,
    "typical_p": 0.8,
    "epsilon_cutoff": 0.001,
    "eta_cutoff": 0.001,
    "watermarking_config": {"bias": 1.5},
    "renormalize_logits": True,
}
DRAWS = {kind.definition.parameter for kind in processor_classes(Stage.WARPER)}


class Mine:
    """A processor of a user."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores * 1.01


def row_of(**given: Any) -> Sequence:
    """A row of a request of its own."""
    return sequence_of(request_for([1, 2, 1], **given)[0], 0)


def random_rows(chooser: random.Random) -> list[Sequence]:
    """Rows with random sets of processors."""
    rows = []
    for number in range(chooser.randint(1, 6)):
        names = chooser.sample(list(ON), chooser.randint(0, 12))
        given = {name: ON[name] for name in names}
        if not DRAWS & given.keys() and chooser.random() < 0.5:
            given["do_sample"] = False
        if chooser.random() < 0.3:
            given["logits_processor"] = LogitsProcessorList([Mine(), Mine()])
        rows.append(row_of(**given, seed=number, max_new_tokens=6))
    return rows


def test_any_set_runs_in_one_order_alone_in_the_batch_and_by_the_documentation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stage(ranked: list[tuple[int, Any]], scores: ScoreBatch) -> list[tuple[int, object]]:
        return [(number, each.processor) for number, each in ranked]

    monkeypatch.setattr(module, "_stage", stage)
    documented = [kind.definition.place for kind in processor_classes()]
    chooser = random.Random(0)
    for _ in range(60):
        rows = random_rows(chooser)
        scores = torch.zeros(len(rows), VOCABULARY)
        run: list[list[object]] = [[] for _ in rows]
        recorded: Any = BatchPlan(ScoreBatch(scores, [*rows], own=False), can_list=True).stages
        for number, processor in (pair for stage in recorded for pair in stage):
            run[number].append(processor)
        for row, own in zip(rows, run, strict=True):
            assert row.plan is not None
            assert [*own, *row.plan.filters] == list(row.processors)
            places = [
                (Stage.USER, 0) if definition is None else definition.place
                for definition in map(definition_of, row.processors)
            ]
            assert places == sorted(places)
            assert {place for place in places if place[0] != Stage.USER} <= set(documented)


def test_all_that_is_built_in_but_what_runs_the_model_or_keeps_a_state_is_vectorised() -> None:
    """Also behind a function that a user wrote (`prefix_allowed_tokens_fn`)."""
    alone = {"watermarking_config", "guidance_scale", "diversity_penalty", "mirostat", None}
    found = [kind.definition for kind in processor_classes()]
    assert {each.parameter for each in found if each.batched is None} == alone
    row = row_of(**{name: ON[name] for name in ON if name != "watermarking_config"})
    plan = plan_row(row.processors, row.passed, VOCABULARY, draws=True, can_list=True)
    assert all(each.batched for each in plan.ranked)


class Unwatched(LogitsProcessor):
    """One that must not be called."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise AssertionError("called row by row")


@pytest.mark.parametrize("passed", [True, False])
def test_a_processor_of_a_test_runs_vectorised_by_its_definition_alone(
    monkeypatch: pytest.MonkeyPatch, passed: bool
) -> None:
    monkeypatch.setattr(definitions_module, "_KINDS", processor_classes())
    shapes: list[tuple[int, ...]] = []

    def dim(scores: torch.Tensor, factor: Any) -> torch.Tensor:
        shapes.append(tuple(scores.shape))
        return (scores * factor).to(scores.dtype)

    class Dims(Unwatched):
        """Multiplies all scores."""

        definition = Definition(
            stage=Stage.PROCESSOR,
            rank=175,
            parameter="dimmed",
            batched=Columns(dim, "factor"),
        )

        def __init__(self, factor: float) -> None:
            self.factor = factor

    class BansLast(Unwatched):
        """Bans the token that was there last."""

        definition = Definition(stage=Stage.PROCESSOR, rank=176, parameter="no_echo", batched=Ban)

        def banned(self, token_ids: list[int], size: int) -> list[int]:
            """As `Ban` asks."""
            return token_ids[-1:]

    def row(number: int) -> Sequence:
        own = LogitsProcessorList([Dims(1.0 + number), BansLast()])
        if passed:
            return row_of(logits_processor=own, suppress_tokens=[4])
        request, _ = request_for([1, 2, 1], suppress_tokens=[4])
        request.processors.extend(own)
        return sequence_of(request)

    rows = [row(number) for number in range(4)]
    logits = torch.randn(4, VOCABULARY)
    logits[:, 1] = 90.0
    logits[:, 4] = 80.0
    sampled = BatchSampler(VOCABULARY, "cpu").sample(logits, rows)
    assert not sampled.failures and shapes == [(4, VOCABULARY)]
    logits[:, [1, 4]] = -torch.inf
    assert sampled.token_ids == logits.argmax(-1).tolist()


def test_objects_of_users_run_in_their_order_between_the_groups() -> None:
    processors: list[Any] = [
        RepetitionPenaltyLogitsProcessor(1.2),
        TemperatureLogitsWarper(0.5),
        Mine(),
        TemperatureLogitsWarper(0.5),
    ]

    def ranked(processors: list[Any], passed: list[bool]) -> list[RankedProcessor]:
        return plan_row(processors, passed, VOCABULARY, draws=False, can_list=True).ranked

    forwards = ranked(processors, [False, True, True, False])
    assert [each.rank for each in forwards] == [(0, 50, 0), (1, 0, 0), (1, 0, 1), (2, 10, 0)]
    assert [each.batched is not None for each in forwards] == [True, True, False, True]
    backwards = ranked(processors[::-1], [False] * 4)
    assert [each.rank for each in backwards] == [(1, 0, number) for number in range(4)]
