"""Peculiarities of Llama; the laws that it shares with the others are in ``test_decoder.py``."""

from __future__ import annotations

import pytest
import torch

from tests.models.build import all_logits, random_ids, random_pair


@pytest.mark.parametrize("attention_bias", [False, True])
@pytest.mark.parametrize("mlp_bias", [False, True])
def test_biases_are_where_the_file_says(attention_bias: bool, mlp_bias: bool) -> None:
    reference, core = random_pair("llama", attention_bias=attention_bias, mlp_bias=mlp_bias)
    names = {rule.target for rule in core.weight_map() if rule.target.endswith("bias")}
    assert any("qkv" in name for name in names) is attention_bias
    assert any("output" in name for name in names) is attention_bias
    assert any("down" in name for name in names) is mlp_bias
    ids = random_ids(1, 6)
    with torch.no_grad():
        expected = reference(ids).logits
    torch.testing.assert_close(all_logits(core, ids), expected, atol=1e-5, rtol=0)
