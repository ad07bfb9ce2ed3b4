"""All layers in one call: the same numbers as one operator after another, and refusals."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen import native
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from asyncgen.models.kernels.native_linear import NativeKernel
from asyncgen.models.kernels.norm import make_scaler
from tests.cases import for_each
from tests.models.build import random_config, random_model
from tests.models.packing import VARIANTS, block_by_block, make_rows, num_groups, packed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from asyncgen.models.decoder import DecoderLM

pytestmark = pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")

DTYPES = [
    dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if native.supports(dtype)
]


@for_each("dtype", DTYPES)
@for_each("variant", ["llama", "mistral", "qwen2", "qwen3"])
def test_one_call_computes_what_the_operators_compute(variant: str, dtype: torch.dtype) -> None:
    model_type, overrides = VARIANTS[variant]
    core = random_model(random_config(model_type, **overrides), seed=3, dtype=dtype)
    core.prepare()
    together, found = core._plan, []
    assert together.makes_logits
    for core._plan in (together, block_by_block(together)):
        groups = num_groups(core)
        storage = PagedStorage(core.config, 20 * groups, 8, dtype=dtype)
        attention, rows = (
            PagedAttention(core.config, storage),
            make_rows([40, 1, 9], 8, list(range(20 * groups)), 0, groups),
        )
        for count in (1, 5):  # one token each, then several
            for row in rows:
                row.count = min(count, len(row.ids) - row.start)
            live = [row for row in rows if row.count]
            found.append(torch.stack(packed(core, attention, live)))
            for row in live:
                row.start += row.count
    half = len(found) // 2
    for together, apart in zip(found[:half], found[half:], strict=True):
        assert torch.isfinite(apart).all()
        assert torch.equal(together, apart)


def test_copy_computes_with_separate_weights() -> None:
    core = random_model(random_config("llama"), seed=3, dtype=torch.float32)
    core.prepare()
    copied = copy.deepcopy(core)
    assert copied._plan is None
    copied.prepare()
    assert copied._plan is not None and core._plan is not None
    assert copied._plan.compiled is not core._plan.compiled


@pytest.mark.parametrize(("hidden_act", "is_one_call"), [("gelu", True), ("relu", False)])
def test_another_gate_is_computed_step_by_step(hidden_act: str, is_one_call: bool) -> None:
    core = random_model(random_config("llama", hidden_act=hidden_act), seed=3, dtype=torch.float32)
    assert core.runs_in_one_call is is_one_call


def test_mismatched_tensors_are_refused() -> None:
    assert native.kernels is not None
    core = random_model(random_config("llama"), seed=3, dtype=torch.float32)
    other = random_model(random_config("llama", num_hidden_layers=2), seed=3, dtype=torch.float32)
    core.prepare()
    layers = core._plan.compiled
    rows = make_rows([5], 8, list(range(4)))
    rows[0].count = 5
    right, wrong = (
        PagedAttention(each.config, PagedStorage(each.config, 4, 8, dtype=torch.float32))
        for each in (core, other)
    )
    for attention in (right, wrong):
        attention.lay_out(rows)
    stream, size = torch.zeros(5, 48), core.config.head_dim
    rope = torch.zeros(5, 1, 2, size // 2), torch.zeros(5, 1, 2, size // 2)
    with pytest.raises(ValueError, match="those of other blocks"):
        layers.run(stream, [rope], wrong.compiled, None, None)
    with pytest.raises(ValueError, match=r"the stream is \[4, 48\].*\[5, 48\]"):
        layers.run(stream[:4], [rope], right.compiled, None, None)
    with pytest.raises(ValueError, match="angles are"):
        layers.run(stream, [(rope[0], rope[1][:4])], right.compiled, None, None)
    with pytest.raises(ValueError, match=r"factors are.*\[5, 1, 1\]"):
        layers.run(stream, [(*rope, torch.ones(5))], right.compiled, None, None)
    with pytest.raises(ValueError, match="turns by rope 0 of 0"):
        layers.run(stream, [], right.compiled, None, None)
    with pytest.raises(TypeError, match="is a tuple, not tensor"):
        layers.run(stream, [rope[0]], right.compiled, None, None)
    with pytest.raises(ValueError, match="the stream is"):
        layers.run(stream[:1].expand(5, 48), [rope], right.compiled, None, None)
    with pytest.raises(TypeError, match="is not of the type"):
        layers.run(stream, [rope], core, None, None)
    layers.run(stream, [rope], right.compiled, torch.arange(4)[0:0:2].contiguous(), None)
    for wanted in ([5], [-1], [1, 1, 7]):
        with pytest.raises(ValueError, match="wanted rows are of 0 to 4, not"):
            layers.run(stream, [rope], right.compiled, torch.tensor(wanted), None)
    with pytest.raises(ValueError, match="at most all 5 rows are wanted, not 6"):
        layers.run(stream, [rope], right.compiled, torch.zeros(6, dtype=torch.int64), None)
    for wrong_kind in (torch.ones(1), torch.tensor([[1]]), torch.ones(1, dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"wanted rows are .* \[rows\] torch.int64"):
            layers.run(stream, [rope], right.compiled, wrong_kind, None)
    size = core.vocab_size
    for logits in (
        torch.zeros(4, size),
        torch.zeros(5, size + 1),
        torch.zeros(5, size, dtype=torch.bfloat16),
        torch.zeros(1, size).expand(5, size),
        torch.zeros(size, 5).t(),
    ):
        with pytest.raises(ValueError, match=rf"logits are .* \[5, {size}\] torch.float32 on cpu"):
            layers.run(stream, [rope], right.compiled, None, logits)
    headless = native.kernels.Layers(
        [layer.compiled() for layer in layers_of(core)],
        rotary=native.kernels.Rotary(torch.float32),
        width=48,
        norm=None,
        head=None,
    )
    with pytest.raises(ValueError, match="no head to make logits with"):
        headless.run(stream, [rope], right.compiled, None, torch.zeros(5, size))


def test_layers_keep_inputs_and_outputs_alive() -> None:
    core = random_model(random_config("llama"), seed=3, dtype=torch.float32)
    core.prepare()
    layers, found = core._plan.compiled, []
    row = make_rows([40], 8, list(range(5)))[0]
    row.count = 40
    angles = torch.randn(40, 1, 2, core.config.head_dim // 2)
    for way in range(2):
        attention = PagedAttention(
            core.config, PagedStorage(core.config, 5, 8, dtype=torch.float32)
        )
        attention.lay_out([row])
        stream = torch.ones(40, 48)

        def ropes(held: Any = attention.compiled) -> Iterator[tuple[Tensor, Tensor]]:
            with pytest.raises(RuntimeError, match="another thread attends"):
                held.attend(0, torch.zeros(1))
            yield angles.clone(), angles.clone()  # which nobody else has

        layers.run(stream, ropes() if way else [(angles, angles)], attention.compiled, None, None)
        attention.lay_out([row])  # it is let go
        found.append(stream)
    assert torch.equal(*found)


def test_parts_that_do_not_fit_together_are_refused() -> None:
    assert native.kernels is not None
    core = random_model(random_config("llama"), seed=3, dtype=torch.float32)
    core.prepare()
    first: Any = core.layers[0]
    block = first.compiled()
    options: dict[str, Any] = {
        "rotary": native.kernels.Rotary(torch.float32),
        "width": 48,
        "norm": None,
        "head": None,
    }
    for wrong in (
        {"up": block.down, "down": block.up},
        {"output_norm": native_norm(32)},
        {"rope": -2},
        {"is_parallel": True, "input_norm": None, "post_norm": None},
    ):
        with pytest.raises(ValueError, match="block 0 do not fit"):
            native.kernels.Layers([block._replace(**wrong)], **options)
    with pytest.raises(TypeError, match="a block is a tuple, not 5"):
        native.kernels.Layers([5], **options)
    with pytest.raises(ValueError, match="no blocks"):
        native.kernels.Layers([], **options)
    head = core.lm_head.ready()
    assert isinstance(head, NativeKernel)
    for ends in (
        {"norm": native_norm(48)},
        {"head": head.compiled},
        {"norm": native_norm(32), "head": head.compiled},
        {"norm": native_norm(48), "head": block.down},
        {"norm": native_norm(48), "head": block.up},
    ):
        with pytest.raises(ValueError, match="the last norm and the head do not fit"):
            native.kernels.Layers([block], **{**options, **ends})
    attention = PagedAttention(core.config, PagedStorage(core.config, 4, 8, dtype=torch.float32))
    rows = make_rows([5], 8, list(range(4)))
    rows[0].count = 5
    attention.lay_out(rows)
    size, count = core.config.head_dim, core.config.num_hidden_layers
    rope = torch.zeros(5, 1, 2, size // 2), torch.zeros(5, 1, 2, size // 2)
    for wrong in (
        {"sinks": torch.zeros(core.config.num_attention_heads)},
        {"heads_norm": native_norm(size)},
        {"keys_norm": native_norm(size)},
    ):
        layers = native.kernels.Layers([block._replace(**wrong)] * count, **options)
        with pytest.raises(ValueError, match="those of other blocks"):
            layers.run(torch.zeros(5, 48), [rope], attention.compiled, None, None)


def layers_of(core: DecoderLM) -> list[Any]:
    return list(core.layers)


def native_norm(features: int) -> Any:
    scaler: Any = make_scaler(torch.ones(features), features, 1e-6)
    return scaler.compiled
