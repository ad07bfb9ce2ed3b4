"""Whole calls with quantised caches: the tokens of transformers with quanto and hqq."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.cache.quantized.made import expected, model_of
from tests.cases import for_each

TOLERANCE = 2e-3
"""Of the highest logit of each step. Here they agree to 1e-4; where sums round otherwise, a number
may come to lie on the other side of half a level."""


def name_of(case: dict[str, Any]) -> str:
    settings = case["cache_config"]
    keys, values = settings["axis_key"], settings["axis_value"]
    return f"{settings['backend']}{settings['nbits']}-{keys}{values}-{case['model']}"


@pytest.mark.gate
@for_each("case", expected()["runs"], ids=name_of)
def test_a_call_gives_the_tokens_of_the_reference(case: dict[str, Any]) -> None:
    ids, call = torch.tensor(case["prompt"]), dict(case["call"])
    torch.manual_seed(call.pop("seed", 0))
    output = model_of(case["model"]).generate(
        ids,
        attention_mask=(ids != 0).long(),
        cache_implementation="quantized",
        cache_config=case["cache_config"],
        return_dict_in_generate=True,
        output_logits=True,
        eos_token_id=2,
        pad_token_id=0,
        **call,
    )
    highest = [float(row[0].max()) for row in output.logits]
    assert output.sequences.tolist() == case["sequences"]
    assert highest == pytest.approx(case["highest"], abs=TOLERANCE)
