"""Models and expectations of ``tests/fixtures/contrastive_dola.json``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from asyncgen.families.config import ModelConfig
from asyncgen.models.core import make_core
from asyncgen.reference.load_model import PreTrainedModel
from tests.models.build import our_model

FIXTURE = Path(__file__).parents[2] / "fixtures" / "contrastive_dola.json"


@cache
def fixture() -> dict[str, Any]:
    """The whole file."""
    content: dict[str, Any] = json.loads(FIXTURE.read_text(encoding="utf-8"))
    return content


def cases(field: str) -> list[dict[str, Any]]:
    """The cases that set a field."""
    return [case for case in fixture()["cases"] if field in case["call"]]


@cache
def model_of(number: int) -> Any:
    """A model of the fixture; do not modify it."""
    raw = {**fixture()["shape"], **fixture()["models"][number]}
    with torch.device("meta"):
        rules = make_core(ModelConfig.from_hf(raw)).weight_map()
    shapes = {
        source: shape
        for rule in rules
        for source, shape in zip(rule.sources, rule.shapes, strict=True)
    }
    generator = torch.Generator().manual_seed(number)
    state = {}
    for name in sorted(shapes):
        values = torch.empty(shapes[name]).uniform_(-0.3, 0.3, generator=generator)
        state[name] = values + 1.0 if "norm" in name else values
    return PreTrainedModel(our_model(raw, state))


def check_inside(found: Any, case: dict[str, Any]) -> None:
    """Compare hidden states and attentions with what the fixture keeps of them."""
    for name, layer, queries in (("hidden_states", -1, 1), ("attentions", 0, 2)):
        steps, wanted = found[name], case[name]
        assert len(steps) == len(wanted["squares"])
        assert {len(step) for step in steps} == {wanted["layers"]}
        shapes = [list(steps[place][layer].shape) for place in (0, -1)]
        assert shapes == wanted["shapes"], name
        last = [step[layer].select(queries, -1) for step in steps]
        squares = [float(each.square().sum()) for each in last]
        assert squares == pytest.approx(wanted["squares"], abs=5e-4, rel=1e-4), name


def generate(case: dict[str, Any], **more: Any) -> Any:
    """Run a case here, as the fixture's script ran it there."""
    ids = torch.tensor(case["prompt"])
    options = {"max_new_tokens": 16, "eos_token_id": 2, "pad_token_id": 0, **more, **case["call"]}
    torch.manual_seed(options.pop("seed", 0))
    return model_of(case["model"]).generate(
        ids,
        attention_mask=(ids != 0).long(),
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **options,
    )
