"""All blocks in one call: the same numbers as one operator after another, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from asyncgen import native
from asyncgen.cache.paged import PagedStorage
from asyncgen.models.attention.paged.attention import PagedAttention
from tests.models.build import random_config, random_model
from tests.models.packing import VARIANTS, make_rows, num_groups, packed

pytestmark = pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")

DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if native.supports(dtype)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", ["llama", "mistral", "qwen2", "qwen3"])
def test_one_call_computes_what_the_operators_compute(variant: str, dtype: torch.dtype) -> None:
    model_type, overrides = VARIANTS[variant]
    core = random_model(random_config(model_type, **overrides), seed=3, dtype=dtype)
    core.prepare()
    *others, compiled = core._plan
    assert compiled is not None
    found = []
    for plan in ((*others, compiled), (*others, None)):
        core._plan = plan
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


def test_a_copy_computes_with_weights_of_its_own() -> None:
    core = random_model(random_config("llama"), seed=3, dtype=torch.float32)
    core.prepare()
    copied = copy.deepcopy(core)
    assert copied._plan is None
    copied.prepare()
    assert copied._plan is not None and core._plan is not None
    assert copied._plan[-1] is not core._plan[-1]


@pytest.mark.parametrize("hidden_act", ["gelu", "relu"])
def test_another_activation_is_computed_step_by_step(hidden_act: str) -> None:
    core = random_model(random_config("llama", hidden_act=hidden_act), seed=3, dtype=torch.float32)
    core.prepare()
    assert core._plan[-1] is None


def test_what_does_not_fit_is_refused() -> None:
    assert native.kernels is not None
    core = random_model(random_config("llama"), seed=3, dtype=torch.float32)
    other = random_model(random_config("llama", num_hidden_layers=2), seed=3, dtype=torch.float32)
    core.prepare()
    layers = core._plan[-1]
    rows = make_rows([5], 8, list(range(4)))
    rows[0].count = 5
    right, wrong = (
        PagedAttention(each.config, PagedStorage(each.config, 4, 8, dtype=torch.float32))
        for each in (core, other)
    )
    for attention in (right, wrong):
        attention.lay_out(rows)
    stream, size = torch.zeros(5, 48), core.config.head_dim
    angles = torch.zeros(5, 1, 2, size // 2), torch.zeros(5, 1, 2, size // 2)
    with pytest.raises(ValueError, match="those of other blocks"):
        layers.run(stream, *angles, wrong.compiled)
    with pytest.raises(ValueError, match=r"the stream is \[4, 48\].*\[5, 48\]"):
        layers.run(stream[:4], *angles, right.compiled)
    with pytest.raises(ValueError, match="angles are"):
        layers.run(stream, angles[0], angles[1][:4], right.compiled)
    with pytest.raises(TypeError, match="is not of the type"):
        layers.run(stream, *angles, core)
    rotary = native.kernels.Rotary(torch.float32)
    first: Any = core.layers[0]
    block = first.compiled()
    with pytest.raises(ValueError, match="block 0 do not fit"):
        native.kernels.Layers([(*block[:5], block[6], block[5])], rotary=rotary)
    with pytest.raises(ValueError, match="no blocks"):
        native.kernels.Layers([], rotary=rotary)
