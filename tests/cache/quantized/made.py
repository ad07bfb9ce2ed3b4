"""Expectations of ``tests/fixtures/quantized.json``, and the models and tensors they are of.

The script that wrote them runs with packages that the tests do not need.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asyncgen.families.config import ModelConfig
from asyncgen.models.core import make_core
from asyncgen.reference.load_model import PreTrainedModel
from tests.models.build import our_model

FIXTURE = Path(__file__).parents[2] / "fixtures" / "quantized.json"


@cache
def expected() -> dict[str, Any]:
    """The whole file."""
    content: dict[str, Any] = json.loads(FIXTURE.read_text(encoding="utf-8"))
    return content


def states(shape: list[int], seed: int) -> Tensor:
    """Numbers around 0.3, ``[B, K, T, D]``."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 1.5 + 0.3


def odd(name: str) -> Tensor:
    """A tensor whose groups of 16 are special."""
    found = states([1, 1, 1, 16] if name == "one" else [1, 1, 2, 16], 3)
    if name == "equal":
        return torch.full_like(found, 3.7)
    return found * 1e-5 if name == "narrow" else found


@cache
def model_of(number: int) -> Any:
    """A model of the fixture; do not modify it."""
    raw = expected()["models"][number]
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
