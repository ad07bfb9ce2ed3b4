"""Rotary angles against the reference, for every scaling, within and beyond the original length."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import ModelConfig, QueryScaling, RopeConfig
from asyncgen.models.kernels.rope import (
    Rotary,
    attention_factor,
    inverse_frequencies,
    query_factors,
)
from tests.cases import for_each
from tests.models.build import all_logits, random_config, random_ids, random_pair

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn, no truncation": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "truncate": False,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
    },
    "yarn, factor given": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 0.8,
    },
    "yarn, mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "mscale": 1.2,
        "mscale_all_dim": 0.7,
    },
}


def rotary(**overrides: Any) -> Rotary:
    return Rotary(ModelConfig.from_hf(random_config("llama", **overrides)), torch.float32)


@for_each("scaling", SCALINGS.values())
@for_each("length", [10, 90])
def test_logits_equal_the_reference(scaling: dict[str, Any] | None, length: int) -> None:
    # Ninety tokens are more than max_position_embeddings (64) and every original length.
    reference, core = random_pair("llama", seed=3, rope_scaling=scaling, head_dim=16)
    ids = random_ids(1, length)
    with torch.no_grad():
        expected = reference(ids).logits
    torch.testing.assert_close(all_logits(core, ids), expected, atol=1e-5, rtol=0)


@for_each("scaling", SCALINGS.values())
def test_frequencies_equal_the_reference(scaling: dict[str, Any] | None) -> None:
    rope_module = pytest.importorskip("transformers.models.llama.modeling_llama")
    reference, _ = random_pair("llama", rope_scaling=scaling, head_dim=32)
    theirs = rope_module.LlamaRotaryEmbedding(reference.config)
    rope = ModelConfig.from_hf(random_config("llama", rope_scaling=scaling, head_dim=32)).rope
    torch.testing.assert_close(inverse_frequencies(rope, 32), theirs.inv_freq, rtol=1e-6, atol=0)
    assert attention_factor(rope) == pytest.approx(theirs.attention_scaling)


def test_turning_is_a_rotation_of_pairs() -> None:
    position = torch.tensor([5])
    cos, sin = rotary(head_dim=8).rows(position)
    x = torch.randn(1, 3, 2, 4)
    turned = x * cos + x.flip(-2) * sin
    angles = 5 * inverse_frequencies(ModelConfig.from_hf(random_config("llama")).rope, 8)
    first, second = x[:, :, 0], x[:, :, 1]
    rotated = torch.complex(first, second) * torch.polar(torch.ones(4), angles)
    torch.testing.assert_close(turned[:, :, 0], rotated.real)
    torch.testing.assert_close(turned[:, :, 1], rotated.imag)


def test_the_table_grows_and_rows_do_not_change() -> None:
    angles = rotary()
    early = angles.rows(torch.tensor([3, 400]))[0].clone()
    angles.rows(torch.tensor([3000]))
    torch.testing.assert_close(angles.rows(torch.tensor([3, 400]))[0], early, rtol=0, atol=0)
    far = rotary().rows(torch.tensor([3000]))
    torch.testing.assert_close(angles.rows(torch.tensor([3000])), far, rtol=0, atol=0)


def test_dynamic_angles_depend_on_the_longest_position_alone() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    fresh, used = rotary(rope_scaling=scaling), rotary(rope_scaling=scaling)
    used.rows(torch.tensor([500]))
    for positions in (torch.tensor([1, 2]), torch.tensor([1, 80]), torch.tensor([63])):
        torch.testing.assert_close(used.rows(positions), fresh.rows(positions), rtol=0, atol=0)
    short, long = fresh.rows(torch.tensor([1, 63]))[1], fresh.rows(torch.tensor([1, 64]))[1]
    assert not torch.equal(short[0], long[0])


def test_a_negative_position_is_refused() -> None:
    angles = rotary()
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="position_ids"):
            angles.rows(torch.tensor([-1]))
        angles.rows(torch.tensor([1]))


def test_rows_follow_the_dtype() -> None:
    angles = rotary()
    assert angles.rows(torch.tensor([1]))[0].dtype == torch.float32
    angles.dtype = torch.bfloat16
    assert angles.rows(torch.tensor([1]))[0].dtype == torch.bfloat16


LONG = RopeConfig(
    rope_type="longrope",
    factor=4.0,
    original_max_position_embeddings=16,
    short_factors=(1.0, 1.1, 1.2, 1.5),
    long_factors=(1.0, 2.0, 3.5, 6.0),
)


@pytest.mark.parametrize("length", [16, 17])
@pytest.mark.parametrize("given", [None, 1.3])
def test_longrope_equals_the_reference(length: int, given: float | None) -> None:
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    transformers = pytest.importorskip("transformers")
    scaling = {
        "rope_type": "longrope",
        "short_factor": list(LONG.short_factors or ()),
        "long_factor": list(LONG.long_factors or ()),
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 10000.0,
    }
    if given is not None:
        scaling["attention_factor"] = given
    settings = {**random_config("llama", head_dim=8), "rope_parameters": scaling}
    settings.pop("model_type")
    config = transformers.LlamaConfig(**settings)
    expected, factor = utils.ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
    rope = replace(LONG, attention_factor=given)
    assert attention_factor(rope) == pytest.approx(factor)
    torch.testing.assert_close(inverse_frequencies(rope, 8, length), expected)


def test_longrope_changes_with_the_longest_text_in_sight() -> None:
    config = replace(ModelConfig.from_hf(random_config("llama", head_dim=8)), rope=LONG)
    rotary = Rotary(config, torch.float32)
    short = rotary.rows(torch.tensor([3, 15]))
    long = rotary.rows(torch.tensor([3, 16]))
    again = rotary.rows(torch.tensor([3]))
    for found, factors in ((short, LONG.short_factors), (long, LONG.long_factors)):
        angle = 3 / 10000 ** (torch.arange(4) / 4) / torch.tensor(factors)
        expected = angle.cos() * attention_factor(LONG)
        torch.testing.assert_close(found[0][0, 0], expected.expand(2, -1))
    assert torch.equal(again[0][0], short[0][0])


def test_dimensions_without_rotation_are_unchanged() -> None:
    plain = ModelConfig.from_hf(random_config("llama", head_dim=8))
    part = RopeConfig(rope_type="yarn", factor=4.0, partial_rotary_factor=0.5)
    for rope in (part, RopeConfig(rope_type="none")):
        cos, sin = Rotary(replace(plain, rope=rope), torch.float32).rows(torch.tensor([0, 7]))
        turned = 2 if rope is part else 0
        assert (cos[..., turned:] == 1).all()
        assert (sin[..., turned:] == 0).all()
    whole = inverse_frequencies(replace(part, partial_rotary_factor=1.0), 4)
    assert torch.equal(inverse_frequencies(part, 8)[:2], whole)


@pytest.mark.parametrize("offset", [0, 1])
def test_queries_grow_with_the_logarithm_of_their_position(offset: int) -> None:
    scaling = QueryScaling(beta=0.1, length=8, offset=offset)
    found = query_factors(scaling, torch.arange(30), torch.float32)
    expected = [1 + 0.1 * math.log(1 + (position + offset) // 8) for position in range(30)]
    torch.testing.assert_close(found, torch.tensor(expected)[:, None, None])
