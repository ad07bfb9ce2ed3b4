"""Laws that every architecture obeys, against transformers at float32."""

from __future__ import annotations

import copy
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.static import StaticCache
from asyncgen.families.config import ModelConfig
from asyncgen.models.attention.dense import DenseAttention
from asyncgen.models.core import make_core
from tests.cases import for_each
from tests.models.build import (
    all_logits,
    load_from_state_dict,
    random_config,
    random_ids,
    random_pair,
)

if TYPE_CHECKING:
    from asyncgen.models.decoder import DecoderLM

TYPES = ["llama", "mistral", "qwen2", "qwen3", "gpt2"]
SLIDING: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "mistral": {"sliding_window": 7},
    "qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "qwen3": {
        "use_sliding_window": True,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}

BLOCK_NORMS = ("input_norm", "post_norm")


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def decode_all(core: DecoderLM, ids: Tensor, cache: DynamicCache | StaticCache) -> Tensor:
    """Logits ``[B, S, V]``, one position at a time."""
    attention = DenseAttention(core.config, cache)
    steps = [
        core.decode(ids[:, i : i + 1], torch.tensor([[i]]), attention) for i in range(ids.shape[1])
    ]
    return torch.stack(steps, dim=1)


@for_each("model_type", TYPES)
@for_each("kv_heads", [1, 2, 6])
@for_each("tied", [False, True])
def test_whole_rows_equal_the_reference(model_type: str, kv_heads: int, tied: bool) -> None:
    reference, core = random_pair(
        model_type, 1, num_key_value_heads=kv_heads, tie_word_embeddings=tied, **SLIDING[model_type]
    )
    ids = random_ids(2, 20)
    with torch.no_grad():
        close(all_logits(core, ids), reference(ids).logits)


@for_each("model_type", TYPES)
@for_each("sliding", [False, True])
@for_each("rows", [1, 3])
def test_steps_equal_whole_rows_with_either_cache(
    model_type: str, sliding: bool, rows: int
) -> None:
    overrides = SLIDING[model_type] if sliding else {"sliding_window": None}
    reference, core = random_pair(model_type, 2, **overrides)
    ids = random_ids(rows, 18)
    with torch.no_grad():
        expected = reference(ids).logits
    close(decode_all(core, ids, DynamicCache(config=core.config)), expected)
    close(decode_all(core, ids, StaticCache(core.config, rows, 18)), expected)


@for_each("model_type", TYPES)
@for_each("chunks", [[5, 13], [7, 7, 4], [17, 1], [1, 16, 1]])
def test_a_prompt_in_chunks_equals_a_whole_one(model_type: str, chunks: list[int]) -> None:
    reference, core = random_pair(model_type, 3, **SLIDING[model_type])
    ids, cache, start = random_ids(2, 18), DynamicCache(), 0
    with torch.no_grad():
        expected = reference(ids).logits
    for size in chunks:
        piece = all_logits(core, ids[:, start : start + size], cache=cache)
        close(piece, expected[:, start : start + size])
        start += size


@for_each("model_type", TYPES)
def test_left_padded_rows_equal_the_reference_and_rows_alone(model_type: str) -> None:
    reference, core = random_pair(model_type, 4, **SLIDING[model_type])
    ids = random_ids(3, 14)
    mask = torch.ones(3, 14, dtype=torch.long)
    mask[1, :4], mask[2, :13] = 0, 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        expected = reference(ids, attention_mask=mask, position_ids=positions).logits
    logits = all_logits(core, ids, attention_mask=mask, positions=positions)
    assert logits.isfinite().all()
    real = mask.bool()
    close(logits[real], expected[real])
    for row, start in enumerate((0, 4, 13)):
        alone = all_logits(core, ids[row : row + 1, start:])
        close(logits[row : row + 1, start:], alone)


@for_each("model_type", TYPES)
def test_padded_rows_decode_as_rows_alone(model_type: str) -> None:
    _, core = random_pair(model_type, 5, **SLIDING[model_type])
    ids = random_ids(2, 12)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[1, :3] = False
    offset = torch.tensor([[0], [3]])
    attention = DenseAttention(core.config, DynamicCache(), mask)
    positions = (torch.arange(8)[None] - offset).clamp(min=0)
    logits = [core.decode(ids[:, :8], positions, attention)]
    logits += [
        core.decode(ids[:, i : i + 1], torch.tensor([[i]]) - offset, attention)
        for i in range(8, 12)
    ]
    for row, start in ((0, 0), (1, 3)):
        alone = all_logits(core, ids[row : row + 1, start:])[0, -5:]
        close(torch.stack(logits, 1)[row], alone)


@for_each("model_type", TYPES)
def test_decode_gives_the_last_position(model_type: str) -> None:
    _, core = random_pair(model_type, 6)
    ids = random_ids(2, 9)
    attention = DenseAttention(core.config, DynamicCache())
    last = core.decode(ids, torch.arange(9)[None], attention)
    close(last, all_logits(core, ids)[:, -1])


@for_each("model_type", TYPES)
def test_hidden_states_and_attentions_equal_the_reference(model_type: str) -> None:
    reference, core = random_pair(model_type, 7, **SLIDING[model_type])
    reference.set_attn_implementation("eager")
    ids = random_ids(2, 11)
    with torch.no_grad():
        theirs = reference(ids, output_hidden_states=True, output_attentions=True)
    states: list[Tensor] = []
    weights: list[Tensor] = []
    attention = DenseAttention(core.config, DynamicCache(), collect_attentions=weights)
    embeddings = core.embed(ids)
    before = embeddings.clone()
    hidden = core.hidden(embeddings, torch.arange(11)[None], attention, states)
    assert torch.equal(embeddings, before)
    assert len(states) == len(theirs.hidden_states) == 4
    for ours, expected in zip(states, theirs.hidden_states, strict=True):
        close(ours, expected)
    for ours, expected in zip(weights, theirs.attentions, strict=True):
        close(ours, expected)
    close(core.project(hidden), theirs.logits)


@for_each(
    "overrides",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"head_dim": 16},
        {"head_dim": ..., "hidden_size": 60},
        {"hidden_act": "gelu"},
        {"hidden_act": "gelu_pytorch_tanh"},
        {"hidden_act": "relu"},
        {"rms_norm_eps": 1e-2},
        {"num_hidden_layers": 1},
        {"intermediate_size": 4, "vocab_size": 5},
    ],
)
@for_each("model_type", ["llama", "qwen3"])
def test_variants_equal_the_reference(model_type: str, overrides: dict[str, Any]) -> None:
    reference, core = random_pair(model_type, 8, **overrides)
    ids = random_ids(2, 9, vocab_size=core.vocab_size)
    with torch.no_grad():
        expected = reference(ids).logits
    close(all_logits(core, ids), expected)
    close(decode_all(core, ids, DynamicCache()), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_matrices_equal_the_reference(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # More rows than one call copies, and chunks of a weight for one thread and for several.
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    reference, core = random_pair(
        "llama", 9, hidden_size=512, intermediate_size=700, vocab_size=1000, num_attention_heads=8
    )
    ids = random_ids(1, 24, vocab_size=1000)
    with torch.no_grad():
        expected = reference(ids).logits
    scale = float(expected.abs().max())
    for logits in (all_logits(core, ids), decode_all(core, ids, DynamicCache())):
        assert float((logits - expected).abs().max()) < 1e-5 * max(1.0, scale)


@pytest.mark.parametrize("tied", [False, True])
def test_short_dtypes_stay_as_close_as_the_reference_does(tied: bool) -> None:
    reference, core = random_pair("qwen3", 10, hidden_size=96, tie_word_embeddings=tied)
    ids = random_ids(1, 12)
    with torch.no_grad():
        exact = reference(ids).logits
        theirs = reference.to(torch.bfloat16)(ids).logits.float()
    core.to(torch.bfloat16)
    assert core.dtype == torch.bfloat16
    ours = decode_all(core, ids, DynamicCache()).float()
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


def test_the_weight_map_names_every_parameter_and_every_stored_weight() -> None:
    for model_type in TYPES:
        reference, _ = random_pair(model_type, attention_bias=True, mlp_bias=True)
        config = ModelConfig.from_hf(random_config(model_type, attention_bias=True, mlp_bias=True))
        with torch.device("meta"):
            core = make_core(config)
        rules = core.weight_map()
        ours = {name: tuple(value.shape) for name, value in core.named_parameters()}
        assert {rule.target for rule in rules} == set(ours)
        for rule in rules:
            shapes = [shape[::-1] if rule.transposed else shape for shape in rule.shapes]
            rows = sum(shape[0] for shape in shapes)
            assert ours[rule.target] == (rows, *shapes[0][1:])
        stored = {name: tuple(value.shape) for name, value in reference.state_dict().items()}
        needed = {
            name: shape
            for rule in rules
            for name, shape in zip(rule.sources, rule.shapes, strict=True)
        }
        assert needed == stored


def test_tied_head_needs_no_separate_weight() -> None:
    _, core = random_pair("llama", tie_word_embeddings=True)
    assert "lm_head.weight" not in {rule.target for rule in core.weight_map()}
    assert any("lm_head" in pattern for pattern in core.ignored_weights())
    _, untied = random_pair("llama")
    assert not any("lm_head" in pattern for pattern in untied.ignored_weights())


def test_a_table_that_is_replaced_leaves_the_head_alone() -> None:
    _, core = random_pair("llama", 11, tie_word_embeddings=True)
    ids = random_ids(1, 5)
    expected = all_logits(core, ids)
    core.use_stored(core.embed_tokens.weight.detach().to(torch.float64))
    kernel = core.lm_head.kernel
    core.prepare()
    assert core.lm_head.kernel is kernel
    close(all_logits(core, ids), expected)


def test_prepared_weights_are_freed() -> None:
    _, core = random_pair("llama", tie_word_embeddings=True)
    names = {name for name, _ in core.named_parameters()}
    assert names == {"embed_tokens.weight", "norm.weight"} | {
        f"layers.{layer}.{norm}.weight"
        for layer in range(3)
        for norm in ("input_norm", "post_norm")
    }


def test_a_large_tied_head_reads_the_table_itself() -> None:
    _, core = random_pair("llama", vocab_size=3000, hidden_size=768, tie_word_embeddings=True)
    table = core.embed_tokens.weight
    kernel = core.lm_head.kernel
    assert kernel is not None
    assert kernel.dense().data_ptr() == table.data_ptr()
    for rows in (1, 40):
        hidden = torch.randn(rows, 768)
        torch.testing.assert_close(core.project(hidden), hidden @ table.T, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_loading_again_replaces_the_weights(tied: bool) -> None:
    _, core = random_pair("llama", 12, tie_word_embeddings=tied)
    reference, _ = random_pair("llama", 13, tie_word_embeddings=tied)
    ids = random_ids(1, 5)
    all_logits(core, ids)
    load_from_state_dict(core, reference.state_dict())
    with torch.no_grad():
        close(all_logits(core, ids), reference(ids).logits)


def test_a_copy_shares_nothing() -> None:
    _, core = random_pair("qwen2", 14)
    ids = random_ids(1, 6)
    expected = all_logits(core, ids)
    twin = copy.deepcopy(core).to(torch.float64)
    assert all_logits(twin, ids).dtype == torch.float64
    close(all_logits(core, ids), expected)
    close(all_logits(twin, ids).float(), expected)


def test_two_threads_do_not_share_memory() -> None:
    _, core = random_pair("llama", 15)
    ids = random_ids(4, 12)
    expected = [decode_all(core, ids[row : row + 1], DynamicCache()) for row in range(4)]
    wrong: list[int] = []

    def work(row: int) -> None:
        for _ in range(5):
            logits = decode_all(core, ids[row : row + 1], DynamicCache())
            if not torch.allclose(logits, expected[row], atol=1e-5):
                wrong.append(row)

    threads = [threading.Thread(target=work, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_results_of_a_step_survive_the_next() -> None:
    _, core = random_pair("llama", 16)
    ids = random_ids(1, 4)
    attention = DenseAttention(core.config, DynamicCache())
    first = core.decode(ids[:, :1], torch.tensor([[0]]), attention)
    kept = first.clone()
    core.decode(ids[:, 1:2], torch.tensor([[1]]), attention)
    assert torch.equal(first, kept)


@pytest.mark.parametrize("static", [False, True])
def test_inference_mode_is_restored(static: bool) -> None:
    _, core = random_pair("llama", 19)
    ids = random_ids(2, 70)
    expected = all_logits(core, ids)
    cache = StaticCache(core.config, 2, 70) if static else DynamicCache()
    attention = DenseAttention(core.config, cache)
    with torch.inference_mode():
        core.decode(ids[:, :60], torch.arange(60)[None], attention)
        core.decode(ids[:, 60:61], torch.tensor([[60]]), attention)
        cache.reorder_cache(torch.tensor([0, 1]))
    steps = [core.decode(ids[:, i : i + 1], torch.tensor([[i]]), attention) for i in range(61, 70)]
    close(torch.stack(steps, 1), expected[:, 61:])


def test_a_step_runs_a_fixed_number_of_operators() -> None:
    _, core = random_pair("llama", 17, num_hidden_layers=3)
    ids = random_ids(1, 1)
    attention = DenseAttention(core.config, DynamicCache())
    core.decode(ids, torch.tensor([[0]]), attention)
    core.decode(ids, torch.tensor([[1]]), attention)

    def count() -> int:
        counter = Counter()
        with counter:
            core.decode(ids, torch.tensor([[2]]), attention)
        return counter.calls

    # Twenty-three operators a layer; the bound leaves room for other versions of torch.
    assert count() == count() <= 3 * 32 + 20


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators that reach a kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.cuda
def test_on_cuda_it_computes_alike() -> None:
    _, core = random_pair("qwen3", 18)
    ids = random_ids(2, 9)
    expected = all_logits(core, ids)
    core.to("cuda")
    attention = DenseAttention(core.config, DynamicCache())
    steps = [
        core.decode(ids[:, i : i + 1].cuda(), torch.tensor([[i]]).cuda(), attention)
        for i in range(9)
    ]
    torch.testing.assert_close(torch.stack(steps, 1).cpu(), expected, atol=1e-3, rtol=0)
