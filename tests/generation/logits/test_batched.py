"""A form for many rows is, bit for bit, the processor itself on each, and leaves the neighbours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.engine.sampling.sampler import ScoreBatch
from asyncgen.errors import InvalidScoresError
from asyncgen.generation.logits.bans import SequenceBiasLogitsProcessor
from asyncgen.generation.logits.base import definition_of, processor_classes
from asyncgen.generation.logits.batched import Columns, RowProcessor
from asyncgen.generation.logits.entropy_filters import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    TopHLogitsWarper,
    TypicalLogitsWarper,
)
from asyncgen.generation.logits.filters import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from asyncgen.generation.logits.lengths import (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
)
from asyncgen.generation.logits.llama_filters import (
    DynamicTemperatureLogitsWarper,
    TopNSigmaLogitsWarper,
    XTCLogitsWarper,
)
from asyncgen.generation.logits.ngrams import EncoderNoRepeatNGramLogitsProcessor
from asyncgen.generation.logits.prefix import PrefixConstrainedLogitsProcessor
from tests.cases import for_each
from tests.doubles.models import EOS, VOCABULARY
from tests.engine.making import request_for, sequence_of

SETTINGS: list[dict[str, Any]] = [
    {"sequence_bias": [[[5], -2.0], [[2, 9], 3.0], [[1, 2, 9], 0.5]]},
    {"bad_words_ids": [[5], [2, 9], [3, 9]]},
    {"repetition_penalty": 1.3},
    {"no_repeat_ngram_size": 1},
    {"min_length": 5},
    {"min_new_tokens": 2},
    {"forced_eos_token_id": [EOS, 7], "max_new_tokens": 1},
    {"exponential_decay_length_penalty": (-3, 1.5)},
    {"suppress_tokens": [1, VOCABULARY - 1]},
    {"begin_suppress_tokens": [1, 2]},
    {"presence_penalty": 0.5},
    {"repetition_penalty": 1.3, "repeat_last_n": 2},
    {"frequency_penalty": 0.5, "repeat_last_n": 2},
    {"dry_multiplier": 0.5, "dry_allowed_length": 1, "dry_sequence_breakers": []},
    {"frequency_penalty": 0.5},
    {"encoder_repetition_penalty": 1.3},
    {"encoder_no_repeat_ngram_size": 1},
    {"encoder_no_repeat_ngram_size": 2},
    {"prefix_allowed_tokens_fn": lambda prompt, ids: [int(ids[-1]), 3, 5]},
    {"regex": "[\\x00-\\x08]*"},
]


CPU = torch.device("cpu")
SHARES = st.floats(0.001, 0.999)
MAKERS = {
    TemperatureLogitsWarper: st.floats(0.05, 5.0),
    TopHLogitsWarper: SHARES,
    TopKLogitsWarper: st.integers(1, 300),
    TopPLogitsWarper: SHARES | st.sampled_from([0.0, 0.99, 0.995, 1.0]),
    MinPLogitsWarper: SHARES | st.just(0.0),
    TypicalLogitsWarper: SHARES,
    EpsilonLogitsWarper: SHARES.map(lambda share: share / 50),
    EtaLogitsWarper: SHARES.map(lambda share: share / 50),
    TopNSigmaLogitsWarper: st.floats(0.1, 4.0),
    DynamicTemperatureLogitsWarper: st.tuples(
        st.floats(0.1, 2.0), st.sampled_from([0.0, 0.4, 3.0]), st.floats(0, 3.0)
    ),
}


def batched_of(processor: Any) -> Any:
    """The form of a processor's class."""
    definition = definition_of(processor)
    assert definition is not None
    return definition.batched


def fits(processor: Any, size: int = VOCABULARY) -> bool:
    """Tell whether the batched form serves the processor."""
    definition = definition_of(processor)
    assert definition is not None
    return definition.fits(processor, size)


def test_every_form_is_looked_at() -> None:
    made = {type(request_for([1], **each)[0].processors[-1]) for each in SETTINGS}
    ours = [kind for kind in processor_classes() if kind.__module__.startswith("asyncgen.")]
    columns = {kind for kind in ours if isinstance(kind.definition.batched, Columns)}
    assert MAKERS.keys() == {kind for kind in columns if kind.definition.batched.parameter}
    left = {kind for kind in ours if kind.definition.batched} - made - columns
    # The start of a decoder is forced only where there is an encoder; behind XTC there is more.
    assert left == {ForcedBOSTokenLogitsProcessor, XTCLogitsWarper}


@for_each("setting", SETTINGS, ids=lambda setting: next(iter(setting)))
def test_batched_form_equals_the_processor_and_leaves_other_rows(setting: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, VOCABULARY, generator=generator)
    rows = [
        sequence_of(request_for(prompt, **kind)[0], 0)
        for prompt, kind in (([9], {}), ([1, 2], setting), ([4], {}), ([1, 2], setting))
    ]
    for generated in ([], [2], [2]):
        for row in rows:
            row.tokens.extend(generated)
        scores = ScoreBatch(logits, [*rows], own=True)
        assert fits(rows[1].processors[-1])
        parts = [RowProcessor(number, rows[number].processors[-1]) for number in (1, 3)]
        batched_of(rows[1].processors[-1])(parts, scores)(scores)
        assert torch.equal(scores.values[::2], logits[::2])
        for number in (1, 3):
            ids = torch.tensor([rows[number].tokens])
            alone = rows[number].request.processors[-1](ids, logits[number : number + 1])
            assert torch.equal(scores.values[number : number + 1], alone)
        assert not scores.failures


def test_tokens_outside_of_the_vocabulary_are_left_to_the_processor() -> None:
    changed = ForcedBOSTokenLogitsProcessor(1)
    changed.bos_token_id = "a"  # type: ignore[assignment]
    for processor in (
        SequenceBiasLogitsProcessor([[[5000], -2.0]]),
        ForcedEOSTokenLogitsProcessor(9, 5000),
        ForcedBOSTokenLogitsProcessor(5000),
        changed,
        EncoderNoRepeatNGramLogitsProcessor(2, torch.tensor([[1, 5000]])),
        PrefixConstrainedLogitsProcessor(lambda prompt, ids: [1], 2),
    ):
        assert not fits(processor)


def test_a_row_whose_decay_overflows_fails_alone() -> None:
    kinds = [{"exponential_decay_length_penalty": (0, factor)} for factor in (1e300, 1.5)]
    rows = [sequence_of(request_for([1], **kind)[0], 0) for kind in kinds]
    for row in rows:
        row.tokens += [2, 3, 4]
    logits = torch.randn(2, VOCABULARY)
    scores = ScoreBatch(logits, [*rows], own=True)
    parts = [RowProcessor(number, row.processors[0]) for number, row in enumerate(rows)]
    batched_of(parts[0].processor)(parts, scores)(scores)
    assert list(scores.failures) == [0]
    assert isinstance(scores.failures[0], InvalidScoresError)
    assert scores.failures[0].processor == "ExponentialDecayLengthPenalty"
    alone = rows[1].processors[0](torch.tensor([rows[1].tokens]), logits[1:])
    assert torch.equal(scores.values[1:], alone)


@for_each("kind", MAKERS, ids=lambda kind: kind.__name__)
def test_columns_are_as_good_as_numbers(kind: Any) -> None:
    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(MAKERS[kind], min_size=1, max_size=5),
        st.sampled_from([9, 300, 4111]),
        st.integers(0, 999),
        st.sampled_from([0.1, 3.0, 15.0]),
        st.booleans(),
    )
    def check(values: list[Any], size: int, seed: int, scale: float, ties: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(len(values), size, generator=generator) * scale
        scores = scores.round() if ties else scores
        scores[:, ::7] = -torch.inf
        processors = [kind(*each) if type(each) is tuple else kind(each) for each in values]
        together = batched_of(processors[0]).bind(processors, CPU)(scores)
        for row, processor in enumerate(processors):
            alone = processor(torch.zeros(1, 1, dtype=torch.int64), scores[row : row + 1])
            assert torch.equal(together[row : row + 1], alone)

    check()


@pytest.mark.parametrize("kind", [TopPLogitsWarper, TypicalLogitsWarper, EtaLogitsWarper])
def test_a_large_vocabulary_rounds_the_same_for_one_row_and_many(kind: Any) -> None:
    threads = torch.get_num_threads()
    scores = torch.randn(6, 50257, generator=torch.Generator().manual_seed(1))
    scores *= torch.tensor([0.1, 0.5, 1.0, 2.0, 4.0, 8.0])[:, None]
    processor = kind(0.01 if kind is EtaLogitsWarper else 0.7)
    together = batched_of(processor).bind([processor] * 6, CPU)(scores)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for row in range(6):
                alone = processor(torch.zeros(1, 1, dtype=torch.int64), scores[row : row + 1])
                assert torch.equal(together[row : row + 1], alone)
    finally:
        torch.set_num_threads(threads)


def test_rows_without_the_filter_stay_as_they_are() -> None:
    logits = torch.randn(3, 40)
    rows: Any = [None, None, None]
    scores = ScoreBatch(logits, [*rows], own=True)
    parts = [RowProcessor(0, TopKLogitsWarper(3)), RowProcessor(2, TopKLogitsWarper(5))]
    batched_of(parts[0].processor)(parts, scores)(scores)
    assert torch.equal(scores.values[1], logits[1])
    assert (scores.values != -torch.inf).sum(-1).tolist() == [3, 40, 5]


def test_rows_with_different_settings_form_groups() -> None:
    logits = torch.randn(2, 40)
    rows: Any = [None, None]
    scores = ScoreBatch(logits, [*rows], own=True)
    parts = [
        RowProcessor(0, TopKLogitsWarper(3)),
        RowProcessor(1, TopKLogitsWarper(5, filter_value=-9.0)),
    ]
    batched_of(parts[0].processor)(parts, scores)(scores)
    assert int((scores.values[0] == -torch.inf).sum()) == 37
    assert int((scores.values[1] == -9.0).sum()) == 35
