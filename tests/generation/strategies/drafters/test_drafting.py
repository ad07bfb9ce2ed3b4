"""Test the choice of a drafter, its settings and lengths, and refused combinations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.strategies.assisted import assisted
from asyncgen.generation.strategies.drafters.assistant import AssistantDrafter
from asyncgen.generation.strategies.drafters.drafter import DraftSchedule
from asyncgen.generation.strategies.drafters.drafting import (
    Assistance,
    check_assistance,
    make_drafter,
)
from asyncgen.generation.strategies.drafters.lookup import LookupDrafter
from tests.cases import for_each
from tests.doubles.models import EOS, PAD, TableModel, byte_tokenizer
from tests.generation.strategies.pairs import near, pair
from tests.generation.strategies.plans import plan_of
from tests.ids import readable

if TYPE_CHECKING:
    from pathlib import Path


PROMPT = [[1, 2, 3, 1, 2]]


def drafter_for(assistance: Assistance, **fields: Any) -> Any:
    plan = plan_of(TableModel(), PROMPT, new_tokens=9)
    plan.config = GenerationConfig(eos_token_id=EOS, pad_token_id=PAD, **fields)
    return make_drafter(TableModel(), plan, assistance, remember=False)


def first_draft(drafter: Any) -> int:
    drafting = drafter.propose(torch.tensor(PROMPT), 100)
    while True:
        try:
            next(drafting)
        except StopIteration as end:
            return len(end.value.token_ids)


def test_the_first_way_that_is_asked_for_drafts() -> None:
    helper = Assistance(TableModel())
    assert isinstance(drafter_for(helper), AssistantDrafter)
    assert isinstance(drafter_for(helper, prompt_lookup_num_tokens=3), LookupDrafter)
    both = {"prompt_lookup_num_tokens": 3, "assistant_early_exit": 1}
    assert isinstance(drafter_for(helper, **both), AssistantDrafter)


@pytest.mark.parametrize(
    ("call", "own", "expected"),
    [({}, {}, 20), ({}, {"num_assistant_tokens": 7}, 7), ({"num_assistant_tokens": 3}, {}, 3)],
)
def test_settings_of_the_call_then_of_the_draft_model_then_the_documented_ones(
    call: dict[str, Any], own: dict[str, Any], expected: int
) -> None:
    helper = Assistance(TableModel(**own))
    off = {"assistant_confidence_threshold": 0.0}
    assert first_draft(drafter_for(helper, **call, **off)) == expected


def test_learnt_draft_length_is_stored_in_the_drafts_config(tmp_path: Path) -> None:
    _, ours = pair(tmp_path / "target")
    _, other = pair(tmp_path / "draft", 5)
    ids = torch.tensor(PROMPT)
    ours.generate(ids, assistant_model=other, max_new_tokens=12)
    assert other.generation_config.num_assistant_tokens is None
    other.generation_config.update(num_assistant_tokens_schedule="heuristic")
    ours.generate(ids, assistant_model=other, num_assistant_tokens=5, max_new_tokens=12)
    learnt = other.generation_config.num_assistant_tokens
    assert learnt is not None and learnt < 5
    before = ours.generation_config.to_dict()
    ours.generate(ids, assistant_early_exit=1, max_new_tokens=12)
    assert ours.generation_config.to_dict() == before


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("num_return_sequences", {"do_sample": True, "num_return_sequences": 2}),
    ("use_cache", {"use_cache": False}),
    ("cache_implementation", {"cache_implementation": "static"}),
    ("cache_implementation", {"cache_implementation": "quantized"}),
    ("num_assistant_tokens", {"num_assistant_tokens": 0}),
    ("num_assistant_tokens_schedule", {"num_assistant_tokens_schedule": "linear"}),
    ("assistant_confidence_threshold", {"assistant_confidence_threshold": 1.5}),
    ("assistant_early_exit", {"assistant_early_exit": 0}),
    ("assistant_early_exit", {"assistant_early_exit": 4}),
    ("prompt_lookup_num_tokens", {"prompt_lookup_num_tokens": 0}),
    ("max_matching_ngram_size", {"prompt_lookup_num_tokens": 2, "max_matching_ngram_size": 0}),
    ("assistant_tokenizer", {"tokenizer": byte_tokenizer(), "assistant_tokenizer": ...}),
    ("assistant_model", {"assistant_model": object()}),
]


@pytest.mark.parametrize(("name", "options"), REFUSED, ids=readable)
def test_wrong_draft_options_are_refused_before_any_forward(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    _, ours = pair(tmp_path)
    inner: Any = ours.core
    inner.decode = inner.hidden = None
    options = {"assistant_model": ours, **options}
    if options.get("assistant_tokenizer") is ...:
        options["assistant_tokenizer"] = options["tokenizer"]
    with pytest.raises(InvalidRequestError, match=name):
        ours.generate(torch.tensor(PROMPT), **options)


def test_one_row_and_a_cache_that_can_be_cropped() -> None:
    model, config = TableModel(), GenerationConfig()
    helper = Assistance(TableModel())
    check_assistance(model, config, helper, rows=1)
    with pytest.raises(InvalidRequestError, match="one row"):
        check_assistance(model, config, helper, rows=2)
    cache = StaticCache(model.config, max_batch_size=1, max_cache_len=8)
    with pytest.raises(InvalidRequestError, match="past_key_values"):
        check_assistance(model, config, helper, rows=1, cache=cache)


def test_another_vocabulary_needs_both_tokenizers(tmp_path: Path) -> None:
    _, ours = pair(tmp_path)
    with pytest.raises(InvalidRequestError, match="assistant_tokenizer"):
        check_assistance(TableModel(), GenerationConfig(), Assistance(ours), rows=1)
    with pytest.raises(InvalidRequestError, match="assistant_tokenizer"):
        only_one = Assistance(ours, tokenizer=byte_tokenizer())
        check_assistance(TableModel(), GenerationConfig(), only_one, rows=1)


def test_processors_of_users_are_not_asked_about_drafts() -> None:
    calls: list[int] = []

    def listens(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(input_ids.shape[1])
        return scores

    model = TableModel()
    plan = plan_of(model, PROMPT, new_tokens=12)
    plan.processors.append(listens)
    plan.drafter = make_drafter(model, plan, Assistance(TableModel(seed=3)), remember=False)
    settled = [token for step in assisted(plan) for token in step.token_ids[0]]
    assert calls == list(range(5, 5 + len(settled)))


def test_constant_stays() -> None:
    schedule = DraftSchedule(5)
    for accepted in (5, 0, 3):
        schedule.update(accepted, 5)
        assert schedule.count == 5


@pytest.mark.parametrize("kind", ["heuristic", "heuristic_transient"])
def test_heuristic_grows_by_two_and_shrinks_by_one(kind: str) -> None:
    schedule = DraftSchedule(2, kind)
    counts = []
    drafts = ((2, 2), (4, 4), (3, 6), (3, 3), (1, 1), (0, 9), (0, 1), (4, 5), (0, 1), (0, 0))
    for accepted, drafted in drafts:
        schedule.update(accepted, drafted)
        counts.append(schedule.count)
    assert counts == [4, 6, 5, 7, 9, 8, 7, 6, 5, 7]
    schedule.count = 1
    schedule.update(0, 1)
    assert schedule.count == 1


@for_each(("count", "kind"), [(0, "constant"), (True, "constant"), (1, "linear")])
def test_draft_schedule_refuses_wrong_values(count: int, kind: str) -> None:
    with pytest.raises(InvalidRequestError, match="num_assistant_tokens"):
        DraftSchedule(count, kind)


@pytest.mark.parametrize(("threshold", "is_same"), [(0.0, True), (0.0, False), (0.4, True)])
def test_the_schedule_goes_as_the_reference_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: float, is_same: bool
) -> None:
    theirs, ours = pair(tmp_path / "model")
    # An assistant that is always right is often unsure all the same, and stops its drafts early.
    helpers = near(theirs, tmp_path / "assistant", amount=0.0 if is_same else 0.02)
    reference = pytest.importorskip("transformers.generation.candidate_generator")
    expected, counts = [], []
    change, renew = (
        reference.AssistedCandidateGenerator.update_candidate_strategy,
        DraftSchedule.update,
    )

    def seen(self: Any, ids: Any, scores: torch.Tensor, matches: int) -> None:
        change(self, ids, scores, matches)
        if scores.shape[1] > 1:  # the reference also grows after the last round, without a draft
            expected.append(self.num_assistant_tokens)

    def seen_here(self: DraftSchedule, accepted: int, drafted: int) -> None:
        renew(self, accepted, drafted)
        counts.append(self.count)

    monkeypatch.setattr(reference.AssistedCandidateGenerator, "update_candidate_strategy", seen)
    monkeypatch.setattr(DraftSchedule, "update", seen_here)
    for model, helper in zip((theirs, ours), helpers, strict=True):
        helper.generation_config.update(
            num_assistant_tokens_schedule="heuristic",
            num_assistant_tokens=5,
            assistant_confidence_threshold=threshold,
        )
        model.generate(
            torch.tensor(PROMPT),
            attention_mask=torch.ones(1, 5),
            assistant_model=helper,
            max_new_tokens=40,
            do_sample=False,
            eos_token_id=None,
        )
    assert counts == expected
    assert (counts[-1] > 5) is is_same and len(counts) > 3
