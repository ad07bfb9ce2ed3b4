"""Scores of selected tokens are those that transformers looks up, and add up to the beams'."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from tests.cases import for_each
from tests.doubles.models import TableModel

PROMPTS = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.fixture(scope="module")
def theirs() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=260, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
        num_attention_heads=1,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


@for_each("normalize", [False, True])
@for_each(
    "options",
    [
        {},
        {"do_sample": True, "num_return_sequences": 2},
        {"num_beams": 3, "num_return_sequences": 2},
        {"num_beams": 3, "do_sample": True},
        {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.5},
    ],
)
def test_like_the_reference(theirs: Any, options: dict[str, Any], normalize: bool) -> None:
    model = TableModel(eos_bias=2.5)
    torch.manual_seed(0)
    output: Any = model.generate(
        PROMPTS, max_new_tokens=9, return_dict_in_generate=True, output_scores=True, **options
    )
    call = (output.sequences, output.scores, output.get("beam_indices"))
    found = model.compute_transition_scores(*call, normalize_logits=normalize)
    expected = theirs.compute_transition_scores(*call, normalize_logits=normalize)
    torch.testing.assert_close(found, expected)


@for_each("penalty", [1.0, 0.0, 2.0])
@for_each(
    "options", [{}, {"num_beam_groups": 2, "diversity_penalty": 0.5}, {"force_words_ids": [[9]]}]
)
def test_they_add_up_to_the_scores_of_the_sequences(
    penalty: float, options: dict[str, Any]
) -> None:
    model = TableModel(eos_bias=2.5)
    output: Any = model.generate(
        PROMPTS,
        max_new_tokens=9,
        num_beams=4,
        num_return_sequences=3,
        length_penalty=penalty,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    scores = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    lengths = (output.beam_indices >= 0).sum(dim=1)
    total = scores.sum(dim=1) / lengths**penalty
    torch.testing.assert_close(total, output.sequences_scores, atol=1e-4, rtol=1e-4)
