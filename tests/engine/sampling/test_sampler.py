"""A row gets in any batch, bit for bit, what its request gets alone."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.engine.sampling import sampler as batch_sampler
from asyncgen.engine.sampling.random_draws import HashDraw
from asyncgen.engine.sampling.sampler import BatchPlan, BatchSampler, Sampled
from asyncgen.errors import InvalidScoresError
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.logits.checked_processors import raise_named
from asyncgen.generation.logits.filters import TemperatureLogitsWarper
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from asyncgen.generation.strategies.token_by_token import most_probable
from tests.doubles.models import TableModel
from tests.engine.making import request_for, sequence_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.batch.sequence import Sequence
    from asyncgen.engine.requests.request import Request
    from asyncgen.engine.sampling.sampler import ScoreBatch

SIZES = (260, 1100, 5003)
MODELS = {size: TableModel(script=[1], vocab_size=size) for size in SIZES}
EXAMPLES = int(os.environ.get("EXAMPLES", "50"))
PROMPT = [5, 6, 7, 5, 6]


class Shifts:
    """A user's processor that counts its calls and writes to what it is given."""

    def __init__(self, by: float) -> None:
        self.by = by
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert input_ids.shape[0] == scores.shape[0] == 1
        self.calls += 1
        scores[:, int(input_ids[0, -1])] += self.by
        return scores


class Doubles(Shifts):
    """One that goes on in another dtype."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return super().__call__(input_ids, scores).double() * 1.0000001


def alone(request: Request, index: int, logits: torch.Tensor, ids: list[int]) -> int:
    """The token that a request picks by itself, as its strategy does it."""
    scores = logits
    if request.processors:
        scores = request.processors(torch.tensor([ids]), logits.clone())
    try:
        if request.params.config.do_sample:
            draw = HashDraw(request.params.seed)
            return int(draw(scores.expand(index + 1, -1), len(ids))[index])
        return int(most_probable(scores, len(ids))[0])
    except FloatingPointError as error:
        raise_named(request.processors, error)


def outcome(call: Callable[[], int]) -> int | tuple[type, str]:
    """A token, or what went wrong."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def told(sampled: Sampled, number: int) -> int | None | tuple[type, str]:
    """The same of a row of a batch."""
    error = sampled.failures.get(number)
    return sampled.token_ids[number] if error is None else (type(error), str(error))


class Mix:
    """Rows of several requests, and for each the same request once more, alone."""

    def __init__(self, kinds: list[dict[str, Any]], size: int) -> None:
        self.sampler = BatchSampler(size, "cpu")
        self.pairs = []
        for number, kind in enumerate(kinds):
            prompt = [number + 1, *PROMPT[: 1 + number % 5]]
            shared, _ = request_for(prompt, model=MODELS[size], **fresh(kind))
            for index in range(kind.get("n", 1)):
                apart = replace(shared, processors=copy.deepcopy(shared.processors))
                self.pairs.append((sequence_of(shared, index), apart))

    def step(self, logits: torch.Tensor, present: list[int] | range) -> None:
        """Compare one step of some rows; those that fail are out."""
        rows = [self.pairs[number] for number in present]
        given = logits[: len(rows)].clone()
        sampled = self.sampler.sample(given, [row for row, _ in rows])
        assert torch.equal(
            given,
            logits[: len(rows)],
        ) or bool(given.isnan().any())
        gone = []
        for place, (row, request) in enumerate(rows):
            some = logits[place : place + 1].float()
            wanted = outcome(lambda: alone(request, row.index, some, row.tokens))  # noqa: B023
            assert told(sampled, place) == wanted
            if isinstance(wanted, int):
                row.tokens.append(wanted)
            else:
                gone.append(self.pairs[present[place]])
        self.pairs = [pair for pair in self.pairs if pair not in gone]


def fresh(kind: dict[str, Any]) -> dict[str, Any]:
    """Parameters with objects of their own."""
    made = dict(kind)
    if "user" in made:
        made["logits_processor"] = LogitsProcessorList([make() for make in made.pop("user")])
    name, value = made.pop("least", ("max_time", None))
    return {**made, name: value}


def _sampling() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "seed": st.integers(0, 5),
            "do_sample": st.just(True),
            "top_k": st.sampled_from([0, 1, 3, 50, 63, 64, 200]),
        },
        optional={
            "temperature": st.sampled_from([0.3, 0.7, 1.9]),
            "top_p": st.sampled_from([0.05, 0.5, 0.9, 0.995]),
            "min_p": st.sampled_from([0.0, 0.02, 0.4]),
            "typical_p": st.sampled_from([0.2, 0.95]),
            "epsilon_cutoff": st.sampled_from([3e-4, 0.02]),
            "eta_cutoff": st.sampled_from([3e-4, 0.05]),
            "top_h": st.sampled_from([0.4, 0.9]),
            "n": st.integers(1, 3),
        },
    )


def _processing() -> st.SearchStrategy[dict[str, Any]]:
    words = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=4)
    return st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.sampled_from([0.8, 1.3]),
            "encoder_repetition_penalty": st.sampled_from([0.8, 1.3]),
            "presence_penalty": st.sampled_from([-0.5, 1.5]),
            "frequency_penalty": st.sampled_from([-0.5, 0.7]),
            "no_repeat_ngram_size": st.integers(1, 3),
            "encoder_no_repeat_ngram_size": st.integers(1, 3),
            "bad_words_ids": words,
            "sequence_bias": words.map(
                lambda lists: [[word, 4.0 - 3 * at] for at, word in enumerate(lists)]
            ),
            "suppress_tokens": st.just([3, 4, 100]),
            "begin_suppress_tokens": st.just([1, 2, 5]),
            "forced_bos_token_id": st.just(9),
            "forced_eos_token_id": st.sampled_from([256, [256, 7]]),
            "least": st.sampled_from([("min_length", 4), ("min_length", 6), ("min_new_tokens", 2)]),
            "exponential_decay_length_penalty": st.sampled_from([(1, 1.7), (0, 1e200)]),
            "remove_invalid_values": st.just(True),
            "renormalize_logits": st.just(True),
            "watermarking_config": st.sampled_from(
                [
                    {"bias": 2.5, "context_width": 1},
                    {"bias": 2.5, "seeding_scheme": "selfhash", "context_width": 2},
                    {"ngram_len": 3, "keys": [3, 5], "sampling_table_size": 64},
                ]
            ),
            "max_new_tokens": st.integers(4, 6),
            "user": st.sampled_from(
                [
                    (lambda: Shifts(2.0),),
                    (lambda: Shifts(2.0), lambda: Doubles(1.0)),
                    (lambda: TemperatureLogitsWarper(0.5), lambda: Shifts(-1.0)),
                ]
            ),
        },
    )


KINDS = st.one_of(
    st.just({}),
    _sampling(),
    _processing(),
    st.tuples(_sampling(), _processing()).map(lambda both: {**both[1], **both[0]}),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(KINDS, min_size=1, max_size=7),
    st.sampled_from(SIZES),
    st.integers(0, 2**32),
    st.sampled_from([0.05, 2.0, 12.0]),
    st.randoms(use_true_random=False),
)
def test_rows_pick_the_same_tokens_in_a_batch_as_alone(
    kinds: list[dict[str, Any]], size: int, seed: int, scale: float, choose: Any
) -> None:
    mix = Mix(kinds, size)
    generator = torch.Generator().manual_seed(seed)
    present = list(range(len(mix.pairs)))
    for step in range(5):
        logits = torch.randn(len(mix.pairs), size, generator=generator) * scale
        if step == 1:
            logits = logits.round()  # many ties
        if step == 3:
            logits[0, 7] = choose.choice([torch.nan, torch.inf, -torch.inf])
            logits = logits.bfloat16()
        if step != 2:  # the same rows twice, so that the plan is used again
            present = choose.sample(range(len(mix.pairs)), choose.randint(1, len(mix.pairs)))
        present = [number for number in present if number < len(mix.pairs)]
        if not present:
            return
        mix.step(logits, present)
        if not mix.pairs:
            return


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
def test_a_large_vocabulary(scale: float) -> None:
    MODELS[49157] = TableModel(script=[1], vocab_size=49157)
    mix = Mix(
        [
            {},
            {"top_k": 0, "do_sample": True, "seed": 1, "n": 3},
            {"top_k": 50, "top_p": 0.9, "temperature": 0.8, "seed": 1},
            {"top_k": 0, "top_p": 0.9, "seed": 2},
            {"top_k": 0, "min_p": 0.1, "seed": 2},
            {"top_k": 0, "top_p": 0.9, "min_p": 0.1, "temperature": 1.3, "seed": 2},
            {"top_k": 0, "typical_p": 0.9, "seed": 2},
            {"top_k": 0, "eta_cutoff": 1e-3, "seed": 2},
            {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        ],
        49157,
    )
    for _ in range(3):
        mix.step(torch.randn(len(mix.pairs), 49157) * scale, range(len(mix.pairs)))


def sampled_of(rows: list[Sequence], logits: torch.Tensor) -> Sampled:
    """One step."""
    return BatchSampler(260, "cpu").sample(logits, rows)


def test_a_row_fails_alone_and_says_why() -> None:
    def raises(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("mine")

    def spoils(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores * torch.nan

    def shortens(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores[:, :-1]

    kinds: list[dict[str, Any]] = [
        {"logits_processor": LogitsProcessorList([bad]), "top_k": 50}
        for bad in (raises, spoils, shortens)
    ]
    kinds += [{"suppress_tokens": list(range(260))}, {}, {"temperature": 0.5, "seed": 3}]
    rows = [sequence_of(request_for([1, 2], **kind)[0], 0) for kind in kinds]
    logits = torch.randn(6, 260, generator=torch.Generator().manual_seed(0))
    sampled = sampled_of(rows, logits)
    assert sampled.failures.keys() == {0, 1, 2, 3}
    assert isinstance(sampled.failures[0], ZeroDivisionError)
    for number, word in ((1, "spoils"), (2, "shortens"), (3, "SuppressTokens")):
        assert isinstance(sampled.failures[number], InvalidScoresError)
        assert word in str(sampled.failures[number])
    assert sampled.token_ids[:4] == [None] * 4
    assert sampled.token_ids[4:] == sampled_of(rows[4:], logits[4:]).token_ids


def test_failure_names_its_processor_or_position() -> None:
    plain = sequence_of(request_for([1, 2])[0], 0)
    banning = sequence_of(request_for([1, 2], suppress_tokens=list(range(260)))[0], 0)
    for row, value, said, processor in (
        (plain, torch.nan, "position 2", None),
        (banning, 0.0, "", "SuppressTokensLogitsProcessor"),
        (banning, torch.nan, "the model's logits", None),
    ):
        error = sampled_of([row], torch.full((1, 260), value)).failures[0]
        assert type(error) is InvalidScoresError and said in str(error)
        assert error.processor == processor


def test_processors_of_users_run_once_a_step_for_each_row() -> None:
    mine = Shifts(1.0)
    request, _ = request_for([1, 2], logits_processor=LogitsProcessorList([mine]), n=3, top_k=9)
    rows = [sequence_of(request, index) for index in range(3)]
    for _ in range(4):
        sampled_of(rows, torch.randn(3, 260))
    assert mine.calls == 12


def test_raw_log_probabilities_go_only_to_requesting_rows() -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"top_logprobs": 3, "suppress_tokens": [5]},
        {"logprobs": True},
    ]
    rows = [sequence_of(request_for([1, 2], **kind)[0], 0) for kind in kinds]
    logits = torch.zeros(3, 260)
    logits[:, 5], logits[:, 6] = 4.0, 3.0
    sampled = sampled_of(rows, logits)
    assert sampled.token_ids == [5, 6, 5]
    assert sampled.logprobs.keys() == {1, 2}
    expected = logits[0].log_softmax(-1)
    assert sampled.logprobs[1].logprob == pytest.approx(float(expected[6]))
    assert sampled.logprobs[1].top_ids[:2] == [5, 6]
    assert [len(sampled.logprobs[row].top_logprobs) for row in (1, 2)] == [3, 0]


def test_processed_scores_are_for_criteria_that_look_at_them() -> None:
    criteria = StoppingCriteriaList([lambda ids, scores, **_: ids[:, -1] == 1])
    kinds: list[dict[str, Any]] = [
        {},
        {"stopping_criteria": criteria, "top_k": 4, "seed": 1},
        {"stopping_criteria": criteria},
    ]
    rows = [sequence_of(request_for([1, 2], **kind)[0], 0) for kind in kinds]
    logits = torch.randn(3, 260)
    sampled = sampled_of(rows, logits)
    assert sampled.scores.keys() == {1, 2}
    assert torch.equal(sampled.scores[1], rows[1].processors(torch.tensor([[1, 2]]), logits[1:2]))
    assert torch.equal(sampled.scores[2], logits[2:])
    for scores in sampled.scores.values():  # nothing of the others' rows lies behind them
        assert scores.untyped_storage().nbytes() == scores.nbytes


def test_rows_are_planned_when_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(BatchPlan):
        def __init__(self, scores: ScoreBatch, **options: bool) -> None:
            made.append(len(scores.rows))
            super().__init__(scores, **options)

    monkeypatch.setattr(batch_sampler, "BatchPlan", Counted)
    rows = [sequence_of(request_for([1, 2], top_k=9)[0], 0) for _ in range(3)]
    sampler = BatchSampler(260, "cpu")
    for present in (rows, rows, rows[:2], rows[:2], rows):
        sampler.sample(torch.randn(len(present), 260), present)
    assert made == [3, 2, 3]


def test_no_rows_is_no_work() -> None:
    assert BatchSampler(260, "cpu").sample(torch.zeros(0, 260), []) == Sampled([])


@pytest.mark.parametrize("seed", range(3))
def test_started_and_finished_is_sampled(seed: int) -> None:
    """Tokens are on the device before they are read, in the order of the rows."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, 260, generator=generator) * 3
    parameters: list[dict[str, Any]] = [
        {"do_sample": True, "top_k": 0},
        {},
        {"top_p": 0.9, "repetition_penalty": 1.3},
        {"min_p": 0.1, "temperature": 0.5},
        {"no_repeat_ngram_size": 2},
    ]
    rows = [sequence_of(request_for(PROMPT, seed=seed, **given)[0], 0) for given in parameters]
    picking = BatchSampler(260, "cpu").start(logits, rows)
    assert picking.is_final
    expected = BatchSampler(260, "cpu").sample(logits, rows).token_ids
    assert picking.tokens().tolist() == expected
    assert BatchSampler(260, "cpu").finish(picking).token_ids == expected


def test_tokens_on_the_device_may_not_be_final() -> None:
    logits = torch.randn(2, 260)
    logits[1] = torch.nan
    given: dict[str, Any]
    for given in (
        {"logits_processor": LogitsProcessorList([Shifts(1.0)])},
        {"logits_processor": LogitsProcessorList([Doubles(1.0)])},
        {"top_logprobs": 0},
        {"stopping_criteria": StoppingCriteriaList([lambda ids, scores, **_: ids[:, 0] < 0])},
    ):
        rows = [sequence_of(request_for(PROMPT, **each)[0], 0) for each in (given, {})]
        assert not BatchSampler(260, "cpu").start(logits, rows).is_final
    rows = [sequence_of(request_for(PROMPT, do_sample=True)[0], 0) for _ in range(2)]
    picking = BatchSampler(260, "cpu").start(logits, rows)
    # What goes on with the row of NaN is a token all the same: it will be looked up.
    assert picking.is_final and all(0 <= token < 260 for token in picking.tokens().tolist())
    sampled = BatchSampler(260, "cpu").finish(picking)
    assert sampled.token_ids[0] is not None and list(sampled.failures) == [1]
