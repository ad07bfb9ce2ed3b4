"""Test every processor: the caller's scores stay, and rows are independent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import asyncgen
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.logits import penalties
from asyncgen.generation.logits.base import LogitsProcessor
from asyncgen.generation.logits.build import build_logits_processors
from asyncgen.generation.logits.dry import DRYLogitsProcessor
from asyncgen.generation.logits.llama_filters import (
    DynamicTemperatureLogitsWarper,
    TopNSigmaLogitsWarper,
    XTCLogitsWarper,
)
from asyncgen.generation.logits.mirostat import MirostatLogitsWarper
from asyncgen.generation.logits.reasoning import ReasoningBudget
from asyncgen.generation.watermarking.greenlist import WatermarkingConfig
from asyncgen.generation.watermarking.synthid import SynthIDTextWatermarkingConfig
from tests.cases import for_each
from tests.doubles.strategies import tiny_model

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, VOCABULARY = 4, 260
EOS = torch.tensor([7])


def _prompt(rows: int) -> torch.Tensor:
    return torch.arange(rows * 6).view(rows, 6) % 9


MAKERS: dict[str, Callable[[int], Any]] = {
    "AlternatingCodebooksLogitsProcessor": lambda rows: (
        asyncgen.AlternatingCodebooksLogitsProcessor(3, 100, 100)
    ),
    "ClassifierFreeGuidanceLogitsProcessor": lambda rows: (
        asyncgen.ClassifierFreeGuidanceLogitsProcessor(1.5)
    ),
    "DRYLogitsProcessor": lambda rows: DRYLogitsProcessor(2.0, allowed_length=1),
    "DynamicTemperatureLogitsWarper": lambda rows: DynamicTemperatureLogitsWarper(0.8, 0.5),
    "EncoderNoRepeatNGramLogitsProcessor": lambda rows: (
        asyncgen.EncoderNoRepeatNGramLogitsProcessor(2, _prompt(rows))
    ),
    "EncoderRepetitionPenaltyLogitsProcessor": lambda rows: (
        asyncgen.EncoderRepetitionPenaltyLogitsProcessor(1.5, _prompt(rows))
    ),
    "EpsilonLogitsWarper": lambda rows: asyncgen.EpsilonLogitsWarper(0.01),
    "EtaLogitsWarper": lambda rows: asyncgen.EtaLogitsWarper(0.01),
    "ExponentialDecayLengthPenalty": lambda rows: asyncgen.ExponentialDecayLengthPenalty(
        (1, 1.5), EOS, 2
    ),
    "ForcedBOSTokenLogitsProcessor": lambda rows: asyncgen.ForcedBOSTokenLogitsProcessor(3),
    "ForcedEOSTokenLogitsProcessor": lambda rows: asyncgen.ForcedEOSTokenLogitsProcessor(7, 7),
    "FrequencyPenaltyLogitsProcessor": lambda rows: penalties.FrequencyPenaltyLogitsProcessor(0.5),
    "ReasoningBudget": lambda rows: ReasoningBudget(
        2,
        prompt_length=3,
        begin="<think>",
        end="</think>",
        ending=[7, 8],
        is_open=True,
        decode=lambda ids: " ".join(map(str, ids)),
    ),
    "GrammarLogitsProcessor": None,  # type: ignore[dict-item]
    "HammingDiversityLogitsProcessor": None,  # type: ignore[dict-item]
    "InfNanRemoveLogitsProcessor": lambda rows: asyncgen.InfNanRemoveLogitsProcessor(),
    "LogitNormalization": lambda rows: asyncgen.LogitNormalization(),
    "MinLengthLogitsProcessor": lambda rows: asyncgen.MinLengthLogitsProcessor(20, 7),
    "MinNewTokensLengthLogitsProcessor": lambda rows: asyncgen.MinNewTokensLengthLogitsProcessor(
        2, 20, 7
    ),
    "MinPLogitsWarper": lambda rows: asyncgen.MinPLogitsWarper(0.2),
    "MirostatLogitsWarper": lambda rows: MirostatLogitsWarper(2, 1.0),
    "NoBadWordsLogitsProcessor": lambda rows: asyncgen.NoBadWordsLogitsProcessor(
        [[3], [0, 4], [4, 5, 6]], 7
    ),
    "NoRepeatNGramLogitsProcessor": lambda rows: asyncgen.NoRepeatNGramLogitsProcessor(2),
    "PrefixConstrainedLogitsProcessor": None,  # type: ignore[dict-item]
    "PresencePenaltyLogitsProcessor": lambda rows: penalties.PresencePenaltyLogitsProcessor(0.5),
    "RepetitionPenaltyLogitsProcessor": lambda rows: asyncgen.RepetitionPenaltyLogitsProcessor(1.5),
    "SequenceBiasLogitsProcessor": lambda rows: asyncgen.SequenceBiasLogitsProcessor(
        {(3,): 1.0, (4, 5): -2.0}
    ),
    "SuppressTokensAtBeginLogitsProcessor": lambda rows: (
        asyncgen.SuppressTokensAtBeginLogitsProcessor([3], 6)
    ),
    "SuppressTokensLogitsProcessor": lambda rows: asyncgen.SuppressTokensLogitsProcessor([3]),
    "SynthIDTextWatermarkLogitsProcessor": lambda rows: SynthIDTextWatermarkingConfig(
        ngram_len=3, keys=[1, 2, 3]
    ).construct_processor(VOCABULARY, "cpu"),
    "TemperatureLogitsWarper": lambda rows: asyncgen.TemperatureLogitsWarper(0.5),
    "TopHLogitsWarper": lambda rows: asyncgen.TopHLogitsWarper(0.5),
    "TopKLogitsWarper": lambda rows: asyncgen.TopKLogitsWarper(5),
    "TopNSigmaLogitsWarper": lambda rows: TopNSigmaLogitsWarper(1.0),
    "TopPLogitsWarper": lambda rows: asyncgen.TopPLogitsWarper(0.5),
    "TypicalLogitsWarper": lambda rows: asyncgen.TypicalLogitsWarper(0.5),
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": lambda rows: (
        asyncgen.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, tiny_model())
    ),
    "WatermarkLogitsProcessor": lambda rows: WatermarkingConfig().construct_processor(
        VOCABULARY, "cpu"
    ),
    "XTCLogitsWarper": lambda rows: XTCLogitsWarper(1.0, 0.001, lambda *_: 0.0),
    "WhisperTimeStampLogitsProcessor": None,  # type: ignore[dict-item]
}
"""Everyone's maker; ``None`` where a test of its own is needed."""

MADE = {name: make for name, make in MAKERS.items() if make is not None}
BATCH_LOOPS = {
    # A row whose reasoning is at its end, which happens once, is looked at by itself.
    "ReasoningBudget",
    # A forward pass of the model, which chooses its kernels by the number of rows.
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    # Repetitions are found by Python, and the number of tokens that go on with one differs.
    "DRYLogitsProcessor",
    # Every row has a state of its own, a number that is read at each step.
    "MirostatLogitsWarper",
    # Sets of n-grams are Python's; what they look up is bounded by n, whatever the length.
    "EncoderNoRepeatNGramLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    # The green list is a seeded permutation, and a generator has one seed at a time.
    "WatermarkLogitsProcessor",
}


def kinds() -> set[str]:
    """Names of all processors of the package."""
    found, left = set(), [LogitsProcessor]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind.__module__.startswith("asyncgen.generation.logits") and not kind.__subclasses__():
            found.add(kind.__name__)
    return {name for name in found if not name.startswith("_")}


def states(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, 9, (rows, 6), generator=generator)
    return ids, torch.randn(rows, VOCABULARY, generator=generator)


def test_every_processor_is_here() -> None:
    missing = kinds() - MAKERS.keys()
    assert not missing, f"add {sorted(missing)} to MAKERS"


@for_each("name", MADE)
def test_the_scores_of_the_caller_stay(name: str) -> None:
    ids, scores = states(ROWS)
    processor = MADE[name](ROWS)
    half = ids.repeat(1, 1)
    given = torch.cat((scores, scores)) if "ClassifierFree" in name[:14] else scores
    kept, kept_ids = given.clone(), ids.clone()
    for _ in range(2):
        processor(half, given)
        assert torch.equal(given, kept)
        assert torch.equal(ids, kept_ids)


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls += 1
        return function(*args, **(kwargs or {}))


@for_each("name", sorted(MADE.keys() - BATCH_LOOPS - {"ClassifierFreeGuidanceLogitsProcessor"}))
def test_more_rows_cost_no_more_operations(name: str) -> None:
    calls = []
    for rows in (2, 8):
        processor = MADE[name](rows)
        ids, scores = states(rows)
        processor(ids, scores)
        with _Count() as count:
            processor(ids, scores)
        calls.append(count.calls)
    assert calls[0] == calls[1]


@pytest.mark.parametrize("field", ["watermarking_config"])
def test_a_configured_list_leaves_scores_alone(field: str) -> None:
    ids, scores = states(2)
    processors = build_logits_processors(
        GenerationConfig(
            repetition_penalty=1.3,
            no_repeat_ngram_size=2,
            do_sample=True,
            temperature=0.7,
            top_k=9,
            **{field: {"bias": 1.0}},
        ),
        prompt_length=3,
        eos_token_ids=EOS,
        device="cpu",
        vocab_size=VOCABULARY,
    )
    kept = scores.clone()
    processors(ids, scores)
    assert torch.equal(scores, kept)
