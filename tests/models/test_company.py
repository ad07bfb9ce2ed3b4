"""The numbers of a text are the same to the last bit, whoever is computed beside it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from asyncgen import native
from asyncgen.cache.paged import PagedStorage
from asyncgen.models.attention.paged.attention import PagedAttention
from tests.models.build import random_config, random_model
from tests.models.packing import VARIANTS, Row, make_rows, packed, run

if TYPE_CHECKING:
    from asyncgen.models.decoder import DecoderLM

pytestmark = pytest.mark.skipif(
    native.kernels is None, reason="torch's kernels promise rounding at best"
)

SIZES = {"hidden_size": 96, "head_dim": 32, "intermediate_size": 160, "num_attention_heads": 3}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3_moe", {"num_local_experts": ..., **EXPERTS}),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 56}),
}
LENGTHS = [70, 3, 300, 41, 1, 128]


def made(variant: str, dtype: torch.dtype) -> DecoderLM:
    """A model of sizes that the kernels have in either dtype."""
    model_type, overrides = {**VARIANTS, **MIXTURES}[variant]
    sizes = SIZES | {"num_key_value_heads": 1, "max_position_embeddings": 512}
    more = {name: value for name, value in sizes.items() if overrides.get(name) is not ...}
    config = random_config(model_type, **(overrides | more))
    core = random_model(config, seed=3, dtype=dtype)
    core.prepare()
    return core


def attention_of(core: DecoderLM, dtype: torch.dtype) -> PagedAttention:
    storage = PagedStorage(core.config, 80, 16, dtype=dtype)
    storage.data.fill_(torch.nan)  # what somebody left there
    return PagedAttention(core.config, storage)


def texts() -> list[Row]:
    return make_rows(LENGTHS, 16, list(range(80)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", ["llama", "mistral", "qwen3", "gpt2", *MIXTURES])
def test_logits_do_not_depend_on_company_or_chunks(variant: str, dtype: torch.dtype) -> None:
    core = made(variant, dtype)
    alone: list[Tensor] = []
    for row in texts():
        row.count = len(row.ids)
        alone += packed(core, attention_of(core, dtype), [row])
    for seed in range(4):
        mixed = run(core, attention_of(core, dtype), texts(), random.Random(seed), most=90)
        for number, (found, expected) in enumerate(zip(mixed, alone, strict=True)):
            assert torch.isfinite(expected).all()
            assert torch.equal(found, expected), f"text {number} in mix {seed}"


def test_nor_on_the_number_of_threads() -> None:
    core = made("llama", torch.float32)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            attention = attention_of(core, torch.float32)
            found.append(run(core, attention, texts(), random.Random(1), most=90))
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))
