"""Layers with options, as families have them: every path gives the result of the formula."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncgen import native
from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.cache.quantized.quantized_cache import QuantizedCache
from asyncgen.errors import InvalidRequestError
from asyncgen.families.config import ModelConfig
from asyncgen.families.plans.attention_options import AttentionOptions, alibi_slopes
from asyncgen.models.attention.dense import DenseAttention
from asyncgen.models.attention.paged.kernel_probe import find_fused_kernel
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from asyncgen.models.attention.paged.torch_attention import TorchAttention
from asyncgen.models.cuda_graphs import why_not
from tests.cases import for_each
from tests.doubles.varlen import varlen_attn
from tests.models.build import random_config
from tests.models.written_out import sinks_of, weigh_plainly

HEADS, KV_HEADS, D = 6, 2, 16

FAMILIES = {
    "gemma2": (
        AttentionOptions(window=6, cap=5.0, scale=0.2),
        AttentionOptions(cap=5.0, scale=0.2),
    ),
    "gpt_oss": (AttentionOptions(window=6, has_sinks=True), AttentionOptions(has_sinks=True)),
    "bloom": (AttentionOptions(slopes=alibi_slopes(HEADS)),) * 2,
    "llama4": (AttentionOptions(window=8, is_chunked=True), AttentionOptions()),
}


def config_of(options: tuple[AttentionOptions, ...]) -> ModelConfig:
    raw = random_config("llama", head_dim=D, num_hidden_layers=len(options))
    return replace(ModelConfig.from_hf(raw), attention=options)


def expected(heads: Tensor, options: AttentionOptions) -> Tensor:
    """Attend a text ``[T, H + 2K, D]`` by the formula, ``[T, H * D]``, in float64."""
    parts = torch.split(heads.double().transpose(0, 1), [HEADS, KV_HEADS, KV_HEADS])
    group = HEADS // KV_HEADS
    queries, keys, values = parts[0], *(part.repeat_interleave(group, 0) for part in parts[1:])
    positions = torch.arange(len(heads))
    behind = positions[:, None] - positions
    firsts = torch.tensor([options.first_seen(at) for at in range(len(heads))])
    hidden = (behind < 0) | (positions < firsts[:, None])
    scaled = options if options.scale is not None else replace(options, scale=D**-0.5)
    weights = weigh_plainly(queries @ keys.transpose(1, 2), behind, scaled, hidden)
    return (weights @ values).transpose(0, 1).flatten(1)


@dataclass
class Text:
    """A text on its way: its heads in each layer ``[L, T, H + 2K, D]``, and its pages, those of
    layers that are in another group apart."""

    heads: Tensor
    pages: list[int]
    more: list[list[int]]
    start: int = 0
    count: int = 0


def run_packed(attention: Any, config: ModelConfig, texts: list[Text], seed: int) -> None:
    """Bring texts to their ends in random mixes, and compare every result with the formula."""
    chooser = random.Random(seed)
    wanted = [
        [expected(text.heads[layer], options) for layer, options in enumerate(config.attention)]
        for text in texts
    ]
    while left := [n for n, text in enumerate(texts) if text.start < text.heads.shape[1]]:
        chosen = chooser.sample(left, chooser.randint(1, len(left)))
        for number in chosen:
            room = texts[number].heads.shape[1] - texts[number].start
            texts[number].count = 1 if chooser.random() < 0.6 else chooser.randint(1, min(room, 11))
        rows = [texts[number] for number in chosen]
        attention.lay_out(rows)
        attention.begin(1, sum(row.count for row in rows))
        for layer, options in enumerate(config.attention):
            parts = [row.heads[layer, row.start : row.start + row.count] for row in rows]
            found = attention.attend(layer, torch.cat(parts), sinks_of(options, HEADS))
            split = torch.split(found, [row.count for row in rows])
            for number, row, one in zip(chosen, rows, split, strict=True):
                right = wanted[number][layer][row.start : row.start + row.count]
                rough = row.heads.dtype == torch.bfloat16
                atol, rtol = (0.02, 0.02) if rough else (5e-6, 1e-5)
                torch.testing.assert_close(one.double(), right, atol=atol, rtol=rtol)
        for row in rows:
            row.start += row.count


def texts_of(lengths: list[int], size: int, dtype: torch.dtype, seed: int) -> list[Text]:
    generator = torch.Generator().manual_seed(seed)
    free = random.Random(seed).sample(range(80), 80)
    texts = []
    for length in lengths:
        heads = torch.randn(2, length, HEADS + 2 * KV_HEADS, D, generator=generator).to(dtype)
        own, other = ([free.pop() for _ in range(-(-length // size))] for _ in range(2))
        texts.append(Text(heads, own, [other]))
    return texts


@pytest.mark.gate
@for_each("family", FAMILIES)
@for_each("dtype", [torch.float32, torch.bfloat16])
@for_each("kernels", ["torch", "own"])
@for_each("heads_first", [True, False])
def test_rows_in_any_mix_equal_the_formula(
    family: str, dtype: torch.dtype, kernels: str, heads_first: bool
) -> None:
    if kernels == "own" and not (heads_first and native.supports(dtype)):
        pytest.skip("torch's kernels serve these pages")
    config = config_of(FAMILIES[family])
    kind = TorchAttention if kernels == "torch" else PagedAttention
    for seed in range(3):
        storage = PagedStorage(config, 80, 7, dtype=dtype, heads_first=heads_first)
        storage.data.fill_(torch.nan)
        texts = texts_of([33, 5, 18], 7, dtype, seed)
        run_packed(kind(config, storage), config, texts, seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_blocks_find_our_kernel_over_the_pages(family: str) -> None:
    config = config_of(FAMILIES[family])
    compiled = PagedAttention(config, PagedStorage(config, 2, 4)).compiled
    assert (compiled is not None) is (native.kernels is not None)


@pytest.mark.parametrize("family", ["gemma2", "gpt_oss", "bloom"])
def test_a_quantised_cache_loses_little(family: str) -> None:
    config = config_of(FAMILIES[family][1:] * 2)  # layers without windows
    text = texts_of([24], 7, torch.float32, 0)[0]
    results = []
    for cache in (DynamicCache(), QuantizedCache("hqq", config, nbits=8, q_group_size=16)):
        attention, found = DenseAttention(config, cache), []
        for begin, end in ((0, 20), *((at, at + 1) for at in range(20, 24))):
            attention.begin(1, end - begin)
            for layer, options in enumerate(config.attention):
                heads = text.heads[layer, begin:end].clone()
                found.append(attention.attend(layer, heads, sinks_of(options, HEADS)))
        results.append(torch.cat(found))
    torch.testing.assert_close(*results, atol=0.03, rtol=0.03)


def test_layers_without_fused_kernel_are_computed_by_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    config = config_of(FAMILIES["llama4"])
    storage = PagedStorage(config, 80, 7, dtype=torch.bfloat16, heads_first=False)
    storage.data.zero_()
    with caplog.at_level(logging.INFO, "asyncgen.models"):
        attention = TorchAttention(config, storage)
    assert "unfused in 1 of 2 layers" in caplog.messages[0]
    assert attention.fused is not None
    run_packed(attention, config, texts_of([33, 5, 18], 7, torch.bfloat16, 0), 0)
    open_ = config_of(FAMILIES["gemma2"])
    assert find_fused_kernel(open_, storage) is None

    class Core:
        packed_length = None

    Core.config = config  # type: ignore[attr-defined]
    assert "options" in str(why_not(Core, attention.fused))


@pytest.mark.parametrize("is_wrong", [False, True])
def test_sinks_are_applied_to_what_a_fused_kernel_tells(
    is_wrong: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def function(*args: Any, return_aux: Any = None, **options: Any) -> Any:
        found = varlen_attn(*args, return_aux=return_aux, **options)
        return found if return_aux is None else (found[0], found[1] * 1.2)

    if is_wrong:
        function.__signature__ = signature(varlen_attn)  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "torch.nn.attention.varlen.varlen_attn", function if is_wrong else varlen_attn
    )
    config = config_of(FAMILIES["gpt_oss"])
    storage = PagedStorage(config, 80, 7, dtype=torch.bfloat16, heads_first=False)
    storage.data.zero_()
    with caplog.at_level(logging.INFO, "asyncgen.models"):
        attention = TorchAttention(config, storage)
    if is_wrong:
        assert attention.fused is None and "no fused sinks: row" in caplog.messages[0]
    else:
        assert attention.fused is not None and attention.fused.is_recordable
        assert all(attention.fused.serves(options) for options in config.attention)
    run_packed(attention, config, texts_of([33, 5, 18], 7, torch.bfloat16, 0), 0)


@for_each(
    ("options", "name"),
    [
        ({"window": 0}, "window"),
        ({"is_chunked": True}, "is_chunked"),
        ({"cap": 0.0}, "cap"),
        ({"scale": 0.0}, "scale"),
        ({"slopes": (1.0, float("nan"))}, "slopes"),
    ],
)
def test_options_without_implementation_are_refused(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        AttentionOptions(**options)


def test_slopes_of_alibi() -> None:
    assert alibi_slopes(8) == tuple(2.0**-k for k in range(1, 9))
    assert alibi_slopes(1) == (2.0**-8,)
    # Others take every second slope of the power of two above.
    assert alibi_slopes(12)[8:] == tuple(2.0 ** (-k / 2) for k in (1, 3, 5, 7))


def test_zeros_after_narrow_values_stay_zeros() -> None:
    config = config_of(FAMILIES["gemma2"])
    text = texts_of([20], 7, torch.float32, 0)[0]
    text.heads[:, :, HEADS + KV_HEADS :, 10:] = 0
    storage = PagedStorage(config, 80, 7)
    storage.data.zero_()
    attention = PagedAttention(config, storage)
    text.count = 20
    attention.lay_out([text])
    attention.begin(1, 20)
    found = attention.attend(0, text.heads[0]).view(20, HEADS, D)
    assert not found[..., 10:].any()
    assert found[..., :10].all()
