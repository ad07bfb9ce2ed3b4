"""Mixers by our own kernels: the formulas in torch, bit for bit however a text is cut."""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncgen import native
from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.states import StateStorage
from asyncgen.models.contexts import dense_context
from asyncgen.models.mixers.packed_states import PackedStates
from tests.cases import for_each
from tests.models.build import random_model
from tests.models.packing import block_by_block

pytestmark = pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")

DTYPES = [
    dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if native.supports(dtype)
]
COMMON = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2}
DUAL = {"model_type": "mamba2", "num_heads": 4, "head_dim": 16, "n_groups": 2}
MAMBA = {"model_type": "mamba", "time_step_rank": 5}
VARIANTS: dict[str, dict[str, Any]] = {
    "dual": {**DUAL, "state_size": 16},
    "dual of odd sizes": {
        **DUAL,
        "hidden_size": 33,
        "num_heads": 6,
        "head_dim": 11,
        "n_groups": 3,
        "state_size": 21,
        "conv_kernel": 3,
    },
    "dual of many numbers": {**DUAL, "n_groups": 1, "state_size": 135, "use_bias": True},
    "dual with limits": {**DUAL, "state_size": 33, "time_step_limit": [0.3, 0.7]},
    "selective": {**MAMBA, "state_size": 16},
    "selective of odd sizes": {
        **MAMBA,
        "hidden_size": 27,
        "state_size": 21,
        "conv_kernel": 2,
        "use_bias": True,
        "use_conv_bias": False,
    },
    "selective with norms": {**MAMBA, "model_type": "falcon_mamba", "state_size": 7},
}
DELTA = {
    "model_type": "qwen3_5_text",
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "layer_types": ["linear_attention"] * 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_value_head_dim": 20,
    "linear_key_head_dim": 16,
}
VARIANTS |= {
    "delta": DELTA,
    "delta of odd sizes": {
        **DELTA,
        "linear_num_value_heads": 3,
        "linear_num_key_heads": 1,
        "linear_value_head_dim": 7,
        "linear_key_head_dim": 27,
        "linear_conv_kernel_dim": 2,
    },
    "delta of long keys": {**DELTA, "linear_key_head_dim": 130, "linear_value_head_dim": 3},
}
APART = {
    **{key: value for key, value in DELTA.items() if key != "head_dim"},
    "model_type": "olmo_hybrid",
}
KIMI = {
    "model_type": "kimi_linear",
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "layer_types": ["linear_attention"] * 2,
    "first_k_dense_replace": 2,
    "linear_num_heads": 3,
    "linear_head_dim": 16,
}
VARIANTS |= {
    "delta with rates up to 2": {**APART, "linear_value_head_dim": 9},
    "delta with decays of features": KIMI,
    "delta with decays of features of odd sizes": {
        **KIMI,
        "hidden_size": 27,
        "linear_num_heads": 2,
        "linear_head_dim": 21,
        "linear_conv_kernel_dim": 3,
    },
    "delta with decays of many features": {**KIMI, "linear_num_heads": 1, "linear_head_dim": 133},
}
LFM2 = {
    "model_type": "lfm2",
    "intermediate_size": 40,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "layer_types": ["conv"] * 2,
}
VARIANTS |= {
    "convolution": LFM2,
    "convolution of odd size": {**LFM2, "hidden_size": 36, "conv_L_cache": 5, "conv_bias": True},
}
LIGHTNING = {
    "model_type": "minimax",
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "num_local_experts": 3,
    "num_experts_per_tok": 3,  # all: a choice of some may hang by what is rounded
    "layer_types": ["linear_attention"] * 2,
    "linear_attn_beta_factor": 0.7,
}
VARIANTS |= {
    "lightning": LIGHTNING,
    "lightning of odd sizes": {**LIGHTNING, "num_attention_heads": 3, "head_dim": 22},
    "lightning of long heads": {**LIGHTNING, "num_attention_heads": 1, "head_dim": 130},
}
GRIFFIN = {
    "model_type": "recurrent_gemma",
    "intermediate_size": 80,
    "num_attention_heads": 2,
    "block_types": ["recurrent"],
}
VARIANTS |= {
    "griffin": GRIFFIN,
    "griffin of odd sizes": {**GRIFFIN, "lru_width": 138, "conv1d_width": 3},
    "griffin of small blocks": {**GRIFFIN, "num_attention_heads": 8, "lru_width": 40},
}
LENGTHS = [37, 1, 70, 5]


@dataclass
class Row:
    slot: int
    text: list[int]
    start: int = 0
    count: int = 0
    turn: int = 0

    @property
    def source(self) -> int:
        """Return the slot that the last step wrote, of two in turn."""
        return 2 * self.slot + (self.turn + 1) % 2 if self.start else -1

    @property
    def target(self) -> int:
        """Return the other slot."""
        return 2 * self.slot + self.turn % 2


def made(variant: str, dtype: torch.dtype = torch.float32) -> Any:
    core = random_model({**COMMON, **VARIANTS[variant]}, seed=5, dtype=dtype)
    core.prepare()
    return core


def texts() -> list[Row]:
    chooser = random.Random(2)
    return [
        Row(slot, [chooser.randrange(61) for _ in range(length)])
        for slot, length in enumerate(LENGTHS)
    ]


def slots(core: Any, dtype: torch.dtype, *, is_plain: bool = False) -> PackedStates:
    """Make slots full of NaN, like memory that was never written."""
    storage = StateStorage(core.config, 2 * len(LENGTHS), dtype=dtype)
    for tensor in (*storage.windows, *storage.states):
        tensor[:-1].fill_(torch.nan)
    states = PackedStates(storage)
    assert states.native is not None
    if is_plain:
        states.native = None
    return states


def step(core: Any, states: PackedStates, rows: list[Row]) -> Tensor:
    """Compute the hidden states of all tokens of a step."""
    states.lay_out(rows)
    ids = torch.tensor([id for row in rows for id in row.text[row.start : row.start + row.count]])
    found = core.hidden_packed(ids, ids, torch.arange(len(ids)), states)
    for row in rows:
        row.start += row.count
        row.turn += 1
    assert isinstance(found, Tensor)
    return found.clone()


def alone(core: Any, states: PackedStates, rows: list[Row]) -> list[Tensor]:
    found = []
    for row in rows:
        row.count = len(row.text)
        found.append(step(core, states, [row]))
    return found


def mixed(core: Any, states: PackedStates, rows: list[Row], seed: int) -> list[Tensor]:
    """Compute the hidden states of texts that come in chunks and in company."""
    chooser = random.Random(seed)
    found: list[list[Tensor]] = [[] for _ in rows]
    while live := [row for row in rows if row.start < len(row.text)]:
        some = chooser.sample(live, chooser.randint(1, len(live)))
        for row in some:
            row.count = min(chooser.choice([1, 1, 3, 20]), len(row.text) - row.start)
        parts = step(core, states, some)
        split = torch.split(parts, [row.count for row in some])
        for row, part in zip(some, split, strict=True):
            found[row.slot].append(part)
    return [torch.cat(parts) for parts in found]


def assert_close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Compare as a whole if the model rounds between operators, else one by one."""
    if dtype != torch.float32:
        away = (found.double() - expected.double()).norm()
        near = 0.02 if dtype == torch.bfloat16 else 0.0025
        assert away <= near * expected.double().norm()
    else:
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.gate
@for_each("dtype", DTYPES)
@for_each("variant", VARIANTS)
def test_a_mixer_is_the_formula(variant: str, dtype: torch.dtype) -> None:
    core = made(variant, dtype)
    states, plain = slots(core, dtype), slots(core, dtype, is_plain=True)
    for found, expected in zip(
        alone(core, states, texts()), alone(core, plain, texts()), strict=True
    ):
        assert_close(found, expected, dtype)
    for layer in range(2):
        places = [2 * slot for slot in range(len(LENGTHS))]
        for name in ("windows", "states"):
            if name == "states" and core.config.model_type == "lfm2":
                continue  # it has none
            found, expected = (getattr(one.storage, name)[layer] for one in (states, plain))
            assert_close(found[places], expected[places], dtype)
            others = [place + 1 for place in places]
            assert found[others].isnan().all()  # nobody asked for those
            assert not found[-1].any()  # a text that has not begun


@for_each("dtype", DTYPES)
@for_each("variant", VARIANTS)
def test_chunks_other_rows_threads_and_blocks_change_no_bit(
    variant: str, dtype: torch.dtype
) -> None:
    core, before = made(variant, dtype), torch.get_num_threads()
    expected = alone(core, slots(core, dtype), texts())
    together = core._plan
    assert together.compiled is not None
    try:
        for seed, (threads, way) in enumerate([(1, together), (3, block_by_block(together))]):
            core._plan = way  # in one call, and block by block
            torch.set_num_threads(threads)
            found = mixed(core, slots(core, dtype), texts(), seed)
            for one, other in zip(found, expected, strict=True):
                assert torch.isfinite(other).all()
                assert torch.equal(one, other)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("variant", ["dual", "selective"])
def test_padded_rows_with_a_cache_are_those_rows(variant: str) -> None:
    core = made(variant)
    rows = texts()
    expected = alone(core, slots(core, torch.float32), rows)
    longest = max(LENGTHS)
    ids = torch.tensor([[0] * (longest - len(row.text)) + row.text for row in rows])
    mask = torch.tensor([[0] * (longest - n) + [1] * n for n in LENGTHS])
    context = dense_context(core, DynamicCache(), mask)
    found = []
    for part in (ids[:, :40], ids[:, 40:-1], ids[:, -1:]):
        hidden = core.hidden(core.embed(part), torch.zeros_like(part), context)
        found.append(hidden)
    every = torch.cat(found, dim=1)
    for row, other in enumerate(expected):
        assert torch.equal(every[row, -len(other) :], other)


def test_mismatched_rows_and_states_are_refused() -> None:
    assert native.kernels is not None
    core, dtype = made("dual"), torch.float32
    states = slots(core, dtype)
    held: Any = states.native
    mixer = core.layers[0].mixer.compiled
    stream = torch.zeros(3, 32)
    with pytest.raises(RuntimeError, match="lay out the rows"):
        mixer.add_to(stream, stream.clone(), held, 0)
    for rows in ([0, 3, 8], [1, 3, 8, 0], [0, 3, 9, 0], [0, 3, 8, -1], [0, 0, 8, 0]):
        with pytest.raises(ValueError, match="rows are"):
            held.lay_out(array("q", rows))
    for first, second in (((8, 0), (8, 0)), ((8, 0), (0, 1)), ((1, 0), (2, 1))):
        with pytest.raises(ValueError, match="in places of their own"):
            held.lay_out(array("q", [0, 1, *first, 1, 2, *second]))
    held.lay_out(array("q", [0, 1, 8, 0, 1, 2, 8, 1]))
    mixer.add_to(stream, stream.clone(), held, 1)
    with pytest.raises(ValueError, match="is not this mixer's"):
        mixer.add_to(stream, stream.clone(), held, 2)
    with pytest.raises(ValueError, match=r"the stream is \[2, 32\]"):
        mixer.add_to(stream[:2], stream.clone(), held, 1)
    with pytest.raises(ValueError, match=r"rows are \[3, 32\] torch.bfloat16"):
        mixer.add_to(stream, stream.bfloat16(), held, 1)
    other: Any = slots(made("selective"), dtype).native
    other.lay_out(array("q", [0, 3, 8, 0]))
    with pytest.raises(ValueError, match="layer 0 of these states"):
        mixer.add_to(stream, stream.clone(), other, 0)
    with pytest.raises(TypeError, match="is not of the type"):
        mixer.add_to(stream, stream.clone(), core, 0)
    with pytest.raises(ValueError, match="states are"):
        native.kernels.States([(None, torch.zeros(2, 3))], dtype=dtype)
    with pytest.raises(ValueError, match="windows are"):
        native.kernels.States([(torch.zeros(2, 3, 4).bfloat16(), None)], dtype=dtype)
