"""Green tokens, score by score, against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.watermarking.greenlist import WatermarkLogitsProcessor, add_green_bias
from tests.cases import for_each
from tests.generation.logits.against import assert_agrees, assert_same

KEYS = [0, 7, 15485863, 2**40 + 1, 2**62 + 12345]


@pytest.mark.gate
@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from(["lefthash", "selfhash"]),
    st.integers(1, 3),
    st.floats(0.05, 0.9),
    st.sampled_from(KEYS),
    st.sampled_from([40, 60, 1500]),
)
def test_scores(seed: int, scheme: str, width: int, ratio: float, key: int, size: int) -> None:
    torch.manual_seed(seed)
    ours = WatermarkLogitsProcessor(size, "cpu", ratio, 1.5, key, scheme, width)
    theirs = transformers.WatermarkLogitsProcessor(size, "cpu", ratio, 1.5, key, scheme, width)
    for length in (1, 2, 5):
        ids = torch.randint(0, size, (3, length))
        scores = torch.randn(3, size) * 3
        if length >= width and not bool((ours(ids, scores) != scores).any(1).all()):
            continue  # the reference fails on a row without any green candidate
        assert_agrees(ours, theirs, (ids, scores))


def test_a_bias_per_row_is_that_row_alone() -> None:
    scores, green, biases = torch.randn(3, 9), torch.rand(3, 9) < 0.5, [0.0, -1.0, 2.5]
    rows = [
        add_green_bias(scores[i : i + 1], green[i : i + 1], bias) for i, bias in enumerate(biases)
    ]
    assert_same(add_green_bias(scores, green, torch.tensor(biases)[:, None]), torch.cat(rows))
    assert torch.equal(rows[0], scores[:1])


def test_tokens_beyond_the_vocabulary_are_left_alone() -> None:
    # Models pad the last matrix, so that there are more scores than tokens.
    scores = torch.zeros(1, 64)
    changed = WatermarkLogitsProcessor(50, "cpu")(torch.tensor([[3]]), scores)[0] != 0
    assert int(changed.sum()) == 12
    assert not bool(changed[50:].any())


def test_global_random_numbers_are_left_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    for scheme in ("lefthash", "selfhash"):
        processor = WatermarkLogitsProcessor(50, "cpu", seeding_scheme=scheme)
        processor(torch.tensor([[3]]), torch.randn(1, 50, generator=torch.Generator()))
    assert torch.equal(torch.rand(3), expected)


@for_each(
    "arguments",
    [
        {"vocab_size": 0},
        {"greenlist_ratio": 0.0},
        {"greenlist_ratio": 1.0},
        {"seeding_scheme": "x"},
        {"context_width": 0},
        {"hashing_key": 1.5},
        {"bias": None},
    ],
)
def test_bad_arguments(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(arguments))):
        WatermarkLogitsProcessor(**{"vocab_size": 50, "device": "cpu", **arguments})


def test_scores_of_another_vocabulary() -> None:
    with pytest.raises(InvalidRequestError, match="vocab_size"):
        WatermarkLogitsProcessor(50, "cpu")(torch.tensor([[3]]), torch.zeros(1, 40))
