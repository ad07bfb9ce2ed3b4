"""Plans: tensors on the model's device, the cache that was asked for, ids that fill ended rows."""

from __future__ import annotations

import pytest
import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.offloaded import OffloadedCache
from asyncgen.cache.quantized.quantized_cache import QuantizedCache
from asyncgen.cache.sliding import HybridCache
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.generate.plan_parts import make_cache
from asyncgen.generation.logits.build import eos_ids
from tests.cases import for_each
from tests.doubles.models import EOS, PAD, TableModel
from tests.generation.strategies.plans import plan_of


def test_ids_become_int64_and_the_mask_bool() -> None:
    plan = plan_of(
        TableModel(), [[1, 2], [3, 4]], new_tokens=2, mask=torch.tensor([[0, 1], [1, 1]])
    )
    assert plan.input_ids.dtype is torch.int64
    assert plan.attention_mask is not None
    assert plan.attention_mask.tolist() == [[False, True], [True, True]]
    assert plan.pad_token_id == PAD


@for_each(
    ("name", "kind"),
    [
        (None, DynamicCache),
        ("dynamic", DynamicCache),
        ("offloaded", OffloadedCache),
        ("quantized", QuantizedCache),
        ("static", StaticCache),
        ("offloaded_static", StaticCache),
        ("hybrid", HybridCache),
        ("hybrid_chunked", HybridCache),
        ("offloaded_hybrid", HybridCache),
        ("offloaded_hybrid_chunked", HybridCache),
    ],
)
def test_cache_by_name(name: str | None, kind: type) -> None:
    config = GenerationConfig(cache_implementation=name)
    assert type(make_cache(TableModel(), config, 2, 30)) is kind


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sliding_window", "window in every layer"),
        ("paged", "one of dynamic, offloaded, static"),
    ],
)
def test_a_cache_that_cannot_be_made_is_named(name: str, reason: str) -> None:
    config = GenerationConfig(cache_implementation=name)
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        make_cache(TableModel(), config, 1, 10)
    assert "`cache_implementation` is " in str(caught.value)


def test_eos_ids_in_every_form() -> None:
    assert eos_ids(GenerationConfig()) == []
    assert eos_ids(GenerationConfig(eos_token_id=EOS)) == [EOS]
    assert eos_ids(GenerationConfig(eos_token_id=[1, 2])) == [1, 2]
