"""The numbers of a text are the same to the last bit beside any other texts."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from asyncgen import native
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from tests.cases import for_each
from tests.families.arch.families import COMMON, FAMILIES
from tests.models.build import random_config, random_model
from tests.models.packing import VARIANTS, Row, block_by_block, make_rows, num_groups, packed, run

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
PAGE = 16
OTHERS = ("gemma2", "gemma3_text", "deepseek_v3", "gpt_oss", "cohere", "phi", "llama4_text")
"""Families with caps, windows, ropes of their own, latent rows, sinks, parallel parts, chunks."""

DTYPES = [
    dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if native.supports(dtype)
]
"""Torch's kernels round by the number of rows, so the others promise nothing."""


def made(variant: str, dtype: torch.dtype) -> DecoderLM:
    """Make a model of sizes that the kernels have in any dtype."""
    model_type, overrides = {**VARIANTS, **MIXTURES}[variant]
    sizes = SIZES | {"num_key_value_heads": 1, "max_position_embeddings": 512}
    more = {name: value for name, value in sizes.items() if overrides.get(name) is not ...}
    config = random_config(model_type, **(overrides | more))
    core = random_model(config, seed=3, dtype=dtype)
    core.prepare()
    return core


def made_of(family: str, dtype: torch.dtype, **more: Any) -> DecoderLM:
    """Make a tiny model of a family, of odd sizes, with windows shorter than the texts."""
    sizes = {"max_position_embeddings": 512, "vocab_size": 97}
    windows = {
        name: 40
        for name in ("sliding_window", "attention_chunk_size")
        if FAMILIES[family].get(name) is not None
    }
    given = {**COMMON, **FAMILIES[family], **sizes, **windows, **more, "model_type": family}
    core = random_model({k: v for k, v in given.items() if v is not ...}, seed=3, dtype=dtype)
    core.prepare()
    return core


def attention_of(core: DecoderLM, dtype: torch.dtype) -> PagedAttention:
    storage = PagedStorage(core.config, 80 * num_groups(core), PAGE, dtype=dtype)
    storage.data.fill_(torch.nan)  # what somebody left there
    return PagedAttention(core.config, storage)


def texts(groups: int = 1) -> list[Row]:
    return make_rows(LENGTHS, PAGE, list(range(80 * groups)), groups=groups)


@for_each("dtype", DTYPES)
@for_each("variant", ["llama", "mistral", "qwen3", "gpt2", *MIXTURES])
def test_logits_do_not_depend_on_other_rows_or_chunks(variant: str, dtype: torch.dtype) -> None:
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


@pytest.mark.gate
@for_each("dtype", DTYPES)
@for_each("family", OTHERS)
def test_logits_of_other_families_do_not_depend_on_other_rows(
    family: str, dtype: torch.dtype
) -> None:
    core, before = made_of(family, dtype), torch.get_num_threads()
    together = core._plan
    assert (together.compiled is None) == (family == "llama4_text")
    groups, alone = num_groups(core), []
    for row in texts(groups):
        row.count = len(row.ids)
        alone += packed(core, attention_of(core, dtype), [row])
    try:
        for way, threads in ((together, 1), (together, 3), (block_by_block(together), 2)):
            core._plan = way  # in one call, and block by block
            torch.set_num_threads(threads)
            chooser, attention = random.Random(threads), attention_of(core, dtype)
            mixed = run(core, attention, texts(groups), chooser, most=90, forgets=True)
            for number, (found, expected) in enumerate(zip(mixed, alone, strict=True)):
                assert torch.isfinite(expected).all()
                assert torch.equal(found, expected), f"text {number}, {threads} threads"
    finally:
        torch.set_num_threads(before)


def asked_for(
    core: DecoderLM, attention: PagedAttention, rows: list[Row], wanted: list[int]
) -> Tensor:
    """The logits of some of the tokens of a step, by their places among all."""
    attention.lay_out(rows)
    ids = torch.cat([row.ids[row.start : row.start + row.count] for row in rows])
    positions = torch.cat([torch.arange(row.start, row.start + row.count) for row in rows])
    return core.decode_packed(ids, positions, torch.tensor(wanted, dtype=torch.int64), attention)


@pytest.mark.gate
@for_each("is_packed", [False, True])
@for_each("dtype", DTYPES)
@for_each("family", ["llama", *OTHERS[:-1]])  # the last computes block by block
def test_logits_do_not_depend_on_requested_tokens(
    family: str, dtype: torch.dtype, is_packed: bool
) -> None:
    core = made("llama", dtype) if family == "llama" else made_of(family, dtype)
    groups, chooser = num_groups(core), random.Random(5)
    total = sum(LENGTHS)
    ends = [sum(LENGTHS[: number + 1]) - 1 for number in range(len(LENGTHS))]
    scattered = chooser.sample(range(total), 40)
    ways = [ends, ends[::-1], scattered, [*range(60, 75), 400, *range(200, 280), 3], [total - 1]]
    ways.append([7, 7, 8, 8, 7])

    def attention() -> PagedAttention:
        storage = PagedStorage(core.config, 80 * groups, PAGE, dtype=dtype, is_packed=is_packed)
        if not is_packed:
            storage.data.fill_(torch.nan)
        return PagedAttention(core.config, storage)

    def whole(first: int = 0) -> list[Row]:
        rows = texts(groups)
        for row in rows:
            row.start = min(first, len(row.ids) - 1)
            row.count = len(row.ids) - row.start
        return rows

    expected = asked_for(core, attention(), whole(), list(range(total)))
    assert torch.isfinite(expected).all()
    for wanted in ways:
        assert torch.equal(asked_for(core, attention(), whole(), wanted), expected[wanted])
    # Nobody is asked for, and what was kept is read by the next step.
    kept = attention()
    begun = [row for row in whole() if len(row.ids) > 1]
    for row in begun:
        row.count = min(33, len(row.ids) - 1)
    assert asked_for(core, kept, begun, []).shape[0] == 0
    rest = whole(33)
    if not is_packed:
        for row in rest:
            row.forget(kept.storage)
    lengths = [row.count for row in rest]
    found = asked_for(core, kept, rest, list(range(sum(lengths))))
    for part, every, count in zip(
        torch.split(found, lengths), torch.split(expected, LENGTHS), lengths, strict=True
    ):
        assert torch.equal(part, every[-count:])


def test_bias_of_a_tied_head_is_added_after_the_call() -> None:
    core, found = made_of("phi", torch.float32, tie_word_embeddings=True), []
    together: Any = core._plan
    assert core.lm_head.adds_bias and together.compiled is not None and not together.makes_logits
    for core._plan in (together, block_by_block(together)):
        (row, *_) = texts()
        row.count = len(row.ids)
        found += packed(core, attention_of(core, torch.float32), [row])
    assert torch.equal(*found)
    assert core.lm_head.bias is not None and core.lm_head.bias.any()


def test_logits_do_not_depend_on_the_number_of_threads() -> None:
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
