"""What a user changes in a built-in processor of theirs counts as where the object is called."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.engine.sampling import sampler as batch_sampler
from asyncgen.engine.sampling.sampler import BatchPlan, BatchSampler
from asyncgen.generation.logits.bans import VocabularyIds
from asyncgen.generation.logits.base import definition_of
from asyncgen.generation.logits.checked_processors import CheckedProcessors
from asyncgen.generation.logits.dry import DRY
from asyncgen.generation.logits.grammar_mask import GrammarLogitsProcessor
from tests.doubles.models import EOS, VOCABULARY, TableModel, byte_tokenizer
from tests.engine.making import request_for, sequence_of
from tests.generation.logits.test_all_processors import MADE

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.batch.sequence import Sequence

PROMPT = [1, 2, 1, 3, 7]
STEPS, CHANGED_AT = 6, 2
MODEL, TOKENIZER = TableModel(), byte_tokenizer()

FIXED = {"ngram_len", "context_history_size", "vocab_size", "use_cache"}
"""What a running object is laid out for: with others a call of it raises as well."""


def other_value(value: Any) -> Any:
    """Another value of a kind; ``None`` where there is no such kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.7
    if isinstance(value, tuple):
        return tuple(map(other_value, value))
    if isinstance(value, torch.Tensor) and value.dtype == torch.int64:
        return value + 1
    if isinstance(value, VocabularyIds):
        return VocabularyIds([5, 7, 9], "cpu")
    if isinstance(value, DRY):
        return replace(value, multiplier=value.multiplier * 3)
    return None


PLAIN = {
    ("DRYLogitsProcessor", "dry"),
    ("DynamicTemperatureLogitsWarper", "heat"),
    ("EncoderRepetitionPenaltyLogitsProcessor", "encoder_input_ids"),
    ("ExponentialDecayLengthPenalty", "regulation_factor"),
    ("FrequencyPenaltyLogitsProcessor", "penalty"),
    ("MinLengthLogitsProcessor", "min_length"),
    ("RepetitionPenaltyLogitsProcessor", "penalty"),
    ("SuppressTokensLogitsProcessor", "suppress_tokens"),
    ("TemperatureLogitsWarper", "temperature"),
    ("TopPLogitsWarper", "min_tokens_to_keep"),
    ("XTCLogitsWarper", "threshold"),
}
"""One of each form for many rows."""


def cases() -> list[Any]:
    """Every attribute that can be changed, of every built-in processor with a definition."""
    found: list[Any] = []
    for name, make in MADE.items():
        own = make(1)
        if definition_of(own) is not None:
            found += [
                pytest.param(
                    name,
                    attribute,
                    marks=() if (name, attribute) in PLAIN else pytest.mark.gate,
                )
                for attribute, value in vars(own).items()
                if not attribute.startswith("_") and attribute not in FIXED
                if other_value(value) is not None
            ]
    return found


class Once:
    """A user's code, which changes an attribute at one step, as a processor or a criterion."""

    def __init__(self, own: Any, change: Callable[[Any], object], *, is_criterion: bool) -> None:
        self._own = own
        self._change = change
        self._is_criterion = is_criterion
        self._calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Count the call; scores stay, and no row ends."""
        if self._calls == CHANGED_AT:
            self._change(self._own)
        self._calls += 1
        return torch.zeros(len(input_ids), dtype=torch.bool) if self._is_criterion else scores


def end_never(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
    """A criterion, so that the sampler tells processed scores."""
    return torch.zeros(len(input_ids), dtype=torch.bool)


class Pair:
    """A row of the shared batch, and its processors once more, called as objects."""

    def __init__(
        self,
        make: Callable[[], Any],
        change: Callable[[Any], object] = bool,
        by: str = "criterion",
    ) -> None:
        own, called = make(), make()
        hooks = [Once(each, change, is_criterion=by == "criterion") for each in (own, called)]
        lists: list[list[Any]] = [[own], [called]]
        if by == "earlier":
            lists = [[hooks[0], own], [hooks[1], called]]
        elif by == "later":
            lists = [[own, hooks[0]], [called, hooks[1]]]
        self.criterion = hooks[1] if by == "criterion" else end_never
        request, _ = request_for(
            PROMPT,
            model=MODEL,
            tokenizer=TOKENIZER,
            logits_processor=lists[0],
            stopping_criteria=[hooks[0] if by == "criterion" else end_never],
            do_sample=False,
            max_new_tokens=40,
        )
        self.row: Sequence = sequence_of(request)
        self.called = CheckedProcessors(lists[1])


def run(present: Callable[[], list[Pair]]) -> None:
    """Run steps of the pairs that are present, and compare all scores bit for bit."""
    sampler = BatchSampler(VOCABULARY, "cpu")
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        here = present()
        logits = torch.randn(len(here), VOCABULARY, generator=generator) * 3
        logits[:, EOS] = -50.0
        rows = [pair.row for pair in here]
        if step % 2:
            sampled = sampler.sample(logits, rows)
        else:
            sampled = sampler.finish(sampler.start(logits, rows))
        assert not sampled.failures
        for number, pair in enumerate(here):
            ids = torch.tensor([pair.row.tokens])
            wanted = pair.called(ids, logits[number : number + 1].clone())
            assert torch.equal(sampled.scores[number], wanted), (step, number)
            token = sampled.token_ids[number]
            assert token is not None
            pair.row.tokens.append(token)
            assert pair.row.reason_to_end(sampled.scores[number]) is None
            pair.criterion(torch.tensor([pair.row.tokens]), None)


@pytest.mark.parametrize(("name", "attribute"), cases())
def test_a_change_counts_at_once_whatever_stands_beside(name: str, attribute: str) -> None:
    def change(own: Any) -> None:
        setattr(own, attribute, other_value(getattr(own, attribute)))

    def make() -> Any:
        return MADE[name](1)

    chooser = random.Random(0)
    for by in ("criterion", "earlier", "later"):
        alone, guested, crowded = (Pair(make, change, by) for _ in range(3))
        guests, crowd = ([Pair(make), Pair(make)] for _ in range(2))
        run(lambda: [alone])  # noqa: B023
        run(lambda: [guested, *chooser.sample(guests, chooser.randint(0, 2))])  # noqa: B023
        run(lambda: [crowd[0], crowded, crowd[1]])  # noqa: B023


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("EncoderRepetitionPenaltyLogitsProcessor", "encoder_input_ids"),
        ("ExponentialDecayLengthPenalty", "eos_token_id"),
        ("ForcedEOSTokenLogitsProcessor", "eos_token_id"),
    ],
)
def test_a_write_to_a_tensor_counts(name: str, attribute: str) -> None:
    pair = Pair(lambda: MADE[name](1), lambda own: getattr(own, attribute).add_(1))
    run(lambda: [pair])


def test_two_requests_may_share_an_object_and_both_follow_it() -> None:
    shared = asyncgen.RepetitionPenaltyLogitsProcessor(1.2)
    rows = [
        sequence_of(request_for(prompt, logits_processor=[shared], do_sample=False)[0])
        for prompt in ([1, 2, 3], [4, 5])
    ]
    sampler = BatchSampler(VOCABULARY, "cpu")
    for penalty in (1.2, 1.2, 3.0, 5.0):
        shared.penalty = penalty
        logits = torch.randn(2, VOCABULARY)
        sampled = sampler.sample(logits, rows)
        for row, own, token in zip(rows, logits, sampled.token_ids, strict=True):
            ids = torch.tensor([row.tokens])
            scores = asyncgen.RepetitionPenaltyLogitsProcessor(penalty)(ids, own[None])
            assert token == int(scores.argmax())
            row.tokens.append(token)


def test_only_what_was_changed_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the plan of the other rows stays."""
    plans: list[BatchPlan] = []

    class Counted(BatchPlan):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            plans.append(self)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(batch_sampler, "BatchPlan", Counted)
    alone: list[Any] = []
    warper = asyncgen.TemperatureLogitsWarper
    call = warper.__call__

    def record(own: Any, *given: Any) -> torch.Tensor:
        alone.append(own)
        return call(own, *given)

    monkeypatch.setattr(warper, "__call__", record)
    made = [warper(0.5 + number) for number in range(3)]
    rows = [sequence_of(request_for([1, 2], logits_processor=[own], seed=0)[0]) for own in made]
    sampler = BatchSampler(VOCABULARY, "cpu")
    for step in range(4):
        if step == 2:
            made[1].temperature = 3.0
        sampled = sampler.sample(torch.randn(3, VOCABULARY), rows)
        for row, token in zip(rows, sampled.token_ids, strict=True):
            assert token is not None
            row.tokens.append(token)
    assert alone == [made[1], made[1]] and len(plans) == 1


def test_a_grammar_that_a_user_passes_begins_behind_the_prompt() -> None:
    grammar = GrammarLogitsProcessor.of(MODEL, TOKENIZER, regex="[xy]{3}z")
    row = sequence_of(request_for("abc", logits_processor=[grammar], do_sample=False)[0])
    sampler = BatchSampler(VOCABULARY, "cpu")
    for _ in range(4):
        sampled = sampler.sample(torch.randn(1, VOCABULARY), [row])
        assert not sampled.failures
        row.tokens.extend(token for token in sampled.token_ids if token is not None)
    text = bytes(row.tokens[-4:]).decode()
    assert set(text[:3]) <= {"x", "y"} and text[3] == "z"


@pytest.mark.parametrize("min_p", [[1, 2], (5, 6), "a", None, 1 + 1j])
@pytest.mark.parametrize("do_sample", [True, False])
def test_an_attribute_of_a_wrong_kind_fails_its_request_alone(min_p: Any, do_sample: bool) -> None:
    with asyncgen.LLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        wrong: Any = asyncgen.MinPLogitsWarper(0.05)
        wrong.min_p = min_p
        params: Any = {"do_sample": do_sample, "max_new_tokens": 4, "seed": 1}
        expected = llm.generate("ab", **params).token_ids
        with pytest.raises(Exception):  # noqa: B017 (whatever the object itself raises)
            llm.generate("ab", logits_processor=[wrong], **params)
        assert llm.is_healthy
        assert llm.generate("ab", **params).token_ids == expected
