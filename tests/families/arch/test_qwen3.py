"""Peculiarities of Qwen3; the laws that it shares with the others are in ``test_decoder.py``."""

from __future__ import annotations

import pytest
import torch

from tests.models.build import all_logits, random_ids, random_pair


@pytest.mark.parametrize("head_dim", [8, 32])
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_heads_are_normalised_before_they_are_turned(head_dim: int, kv_heads: int) -> None:
    reference, core = random_pair("qwen3", head_dim=head_dim, num_key_value_heads=kv_heads)
    ids = random_ids(2, 12)
    with torch.no_grad():
        expected = reference(ids).logits
    torch.testing.assert_close(all_logits(core, ids), expected, atol=1e-5, rtol=0)


def test_the_norms_of_queries_and_keys_are_loaded_apart() -> None:
    _, core = random_pair("qwen3")
    targets = {rule.target for rule in core.weight_map()}
    assert {"layers.0.q_norm.weight", "layers.2.k_norm.weight"} <= targets
