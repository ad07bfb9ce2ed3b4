"""Peculiarities of Qwen2; the laws that it shares with the others are in ``test_decoder.py``."""

from __future__ import annotations

import pytest
import torch

from tests.models.build import all_logits, random_ids, random_pair


@pytest.mark.parametrize("first", [0, 2, 3])
def test_layers_from_the_given_one_on_slide(first: int) -> None:
    reference, core = random_pair(
        "qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=first
    )
    assert [core.config.window(layer) for layer in range(3)] == [None] * first + [4] * (3 - first)
    ids = random_ids(1, 12)
    with torch.no_grad():
        expected = reference(ids).logits
    torch.testing.assert_close(all_logits(core, ids), expected, atol=1e-5, rtol=0)


def test_queries_keys_and_values_alone_have_biases() -> None:
    _, core = random_pair("qwen2", attention_bias=False)
    biased = {rule.target for rule in core.weight_map() if rule.target.endswith("bias")}
    assert biased == {f"layers.{layer}.qkv.bias" for layer in range(3)}
