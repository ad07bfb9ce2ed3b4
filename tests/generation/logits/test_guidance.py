"""Guidance, against transformers: both branches in one batch, and a branch of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.guidance import (
    ClassifierFreeGuidanceLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
    guide,
)
from tests.cases import for_each
from tests.generation.logits.against import assert_agrees, assert_same


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 4), st.floats(1.01, 9.0), st.integers(0, 2**31))
def test_batched(batch: int, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    case = torch.zeros(batch, 3, dtype=torch.int64), torch.randn(2 * batch, 30)
    theirs = reference.ClassifierFreeGuidanceLogitsProcessor(scale)
    assert_agrees(ClassifierFreeGuidanceLogitsProcessor(scale), theirs, case)


def test_a_scale_per_row_is_that_row_alone() -> None:
    scores, others, scales = torch.randn(3, 9), torch.randn(3, 9), [0.0, 1.0, 2.5]
    rows = [guide(scores[i : i + 1], others[i : i + 1], scale) for i, scale in enumerate(scales)]
    assert_same(guide(scores, others, torch.tensor(scales)[:, None]), torch.cat(rows))
    assert torch.equal(rows[0], others[:1])


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny random model of transformers; both sides call the same one."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.5,
    )
    return transformers.LlamaForCausalLM(config).eval()


@for_each("use_cache", [True, False])
@for_each("negative", ["none", "plain", "padded", "right padded"])
@for_each("scale", [0, 0.5, 1, 1.5, 3.0, -1.0])
def test_unbatched(model: Any, use_cache: bool, negative: str, scale: float) -> None:
    torch.manual_seed(1)
    ids, mask = None, None
    if negative != "none":
        ids = torch.randint(0, 40, (2, 4))
    if negative == "padded":
        mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    if negative == "right padded":
        mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    ours = UnbatchedClassifierFreeGuidanceLogitsProcessor(scale, model, ids, mask, use_cache)
    theirs = reference.UnbatchedClassifierFreeGuidanceLogitsProcessor(
        scale, model, ids, mask, use_cache
    )
    sequence = torch.randint(0, 40, (2, 9))
    with torch.no_grad():
        for length in range(3, 9):
            scores = torch.randn(2, 40)
            kept = scores.clone()
            actual = ours(sequence[:, :length], scores)
            assert torch.equal(scores, kept)
            assert_same(actual, theirs(sequence[:, :length], scores.clone()), atol=1e-5)


def test_with_a_cache_a_step_reads_one_token() -> None:
    lengths = []

    def forward(input_ids: Any, **options: Any) -> Any:
        lengths.append(input_ids.shape[1])
        return transformers.modeling_outputs.CausalLMOutputWithPast(
            logits=torch.zeros(*input_ids.shape, 7), past_key_values=object()
        )

    processor = UnbatchedClassifierFreeGuidanceLogitsProcessor(
        2.0, forward, torch.ones(1, 5).long()
    )
    for length in range(3, 9):
        processor(torch.ones(1, length, dtype=torch.int64), torch.zeros(1, 7))
    assert lengths == [5, 1, 1, 1, 1, 1]


@for_each("scale", [1.0, 0.5, "a", None, float("nan")])
def test_bad_batched_scale(scale: float) -> None:
    with pytest.raises(InvalidRequestError, match="guidance_scale"):
        ClassifierFreeGuidanceLogitsProcessor(scale)


def test_bad_arguments(model: Any) -> None:
    ids = torch.ones(1, 3, dtype=torch.int64)
    with pytest.raises(InvalidRequestError, match=r"scores.*twice as many"):
        ClassifierFreeGuidanceLogitsProcessor(2.0)(ids, torch.zeros(1, 4))
    for arguments, name in (
        (("a", model), "guidance_scale"),
        ((2.0, model, torch.ones(1, 3)), "negative_prompt_ids"),
        ((2.0, model, torch.ones(3, dtype=torch.int64)), "negative_prompt_ids"),
        ((2.0, model, ids[:, :0]), "negative_prompt_ids"),
        ((2.0, model, ids, ids[:, :2]), "negative_prompt_attention_mask"),
        ((2.0, model, None, ids), "unconditional_attention_mask"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            UnbatchedClassifierFreeGuidanceLogitsProcessor(*arguments)
        assert caught.value.parameter == name
