"""Weights are repacked by our kernels as torch's operators repack them, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import pytest
import torch

from asyncgen import native
from asyncgen.checkpoints.gguf import read_tensors
from asyncgen.checkpoints.gguf.block_formats import parts_of
from asyncgen.checkpoints.gguf.gguf_file import open_gguf
from asyncgen.checkpoints.gguf.tensor_types import TENSOR_TYPES, TensorType
from asyncgen.models.kernels.native_packed import PackedLinearKernel, PackedStack, supports_packed
from asyncgen.models.kernels.packed_panels import PanelLayout, lay_out
from asyncgen.models.kernels.packed_weight import UNSIGNED, PackedWeight, join
from tests.cases import for_each
from tests.checkpoints.gguf.making import write_gguf
from tests.checkpoints.gguf.test_block_formats import random_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.skipif(
    not supports_packed(torch.float32), reason="needs our kernels, for AVX-512 and VNNI"
)

PACKED = [kind for kind in TENSOR_TYPES.values() if kind.plain is None]


@for_each("kind", PACKED, ids=lambda kind: kind.name)
def test_blocks_come_apart_as_torch_takes_them(kind: TensorType) -> None:
    blocks = torch.from_numpy(random_blocks(kind.name, 300))
    expected = read_tensors._by_rows(parts_of(kind.name, blocks), len(blocks))
    found = {name: torch.full_like(part, 77) for name, part in expected.items()}
    read_tensors._take_apart(kind.name, blocks, found)
    for name, part in expected.items():
        assert torch.equal(found[name].view(torch.uint8), part.contiguous().view(torch.uint8)), name


LIMITS = {"Q6_K": 1.4, "Q2_K": 1.8, "Q3_K": 1.8, "Q5_0": 1.8, "Q5_1": 1.8, "Q5_K": 1.8}
"""Bytes of a weight in memory, over those of its file: 1.15 where nothing else is said."""


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_memory_is_little_more_than_the_file(kind: TensorType, tmp_path: Path) -> None:
    rows = random_blocks(kind.name, 12 * 96)[: 12 * 64].reshape(64, -1)
    number = gguf.GGMLQuantizationType[kind.name]
    file = write_gguf(tmp_path / "x.gguf", {}, {"x": rows}, {"x": number})
    packed = read_tensors.read_packed(open_gguf(file).tensors["x"])
    kernel = PackedLinearKernel([packed], None, dtype=torch.float32)
    assert kernel.bytes().nbytes <= LIMITS.get(kind.name, 1.15) * rows.nbytes
    assert torch.equal(kernel.dense(), packed.dequantise())


def weight(outputs: int, inputs: int = 520, most: int = 63, seed: int = 0) -> PackedWeight:
    torch.manual_seed(seed)
    groups, supers = -(-inputs // 32), -(-inputs // 256)
    return PackedWeight(
        codes=torch.randint(0, 256, (outputs, groups * 16), dtype=torch.uint8),
        inputs=inputs,
        group=32,
        scales=torch.randint(0, most + 1, (outputs, groups), dtype=torch.int8),
        minimums=torch.randint(-most, 1, (outputs, groups), dtype=torch.int8),
        super_scales=torch.rand(outputs, supers).half(),
        super_minimums=torch.rand(outputs, supers).half(),
        table=UNSIGNED,
    )


def written_out(weight: PackedWeight, layout: PanelLayout, half: int) -> list[int]:
    """The bytes of half a panel, by the picture of ``linear_packed.h``."""
    made: list[int] = []
    rows = [half * 16 + lane for lane in range(16)]

    def put(part: Any, at: int) -> None:
        for row in rows:
            one = part[row, at] if row < weight.outputs else torch.zeros((), dtype=part.dtype)
            made.extend(one.view(1).view(torch.uint8).tolist())

    for group in range(weight.num_groups):
        if group % 8 == 0:
            put(weight.super_scales, group // 8)
            put(weight.super_minimums, group // 8)
        if layout.shares:
            assert weight.minimums is not None
            put(weight.scales | -weight.minimums << 4, group)
        else:
            put(weight.scales, group)
            put(weight.minimums, group)
        for first in range(0, 32, 8):
            for row in rows:
                for odd in (0, 1):
                    word = 0
                    for pair in range(4) if row < weight.outputs else ():
                        column = group * 32 + first + 2 * pair + odd
                        code = int(weight.codes[row, column // 2]) >> column % 2 * 4 & 15
                        word |= code << 4 * pair
                    made += [word & 255, word >> 8]
    return made


@pytest.mark.parametrize("most", [15, 63])
def test_panels_are_those_of_the_picture(most: int) -> None:
    one = weight(37, 72, most)
    layout = PanelLayout.of([one])
    assert layout.shares == (most == 15)
    panels = torch.full((2, 2, layout.num_bytes()), 99, dtype=torch.uint8)
    lay_out([one], layout, False, panels)
    for half, found in enumerate(panels.flatten(0, 1).tolist()):
        assert found == written_out(one, layout, half)


@pytest.mark.parametrize("is_gated", [False, True])
def test_weights_lie_as_the_one_that_they_are(is_gated: bool) -> None:
    parts = [weight(40, seed=1), weight(7, seed=2), weight(43, seed=3)]
    apart = PackedLinearKernel(parts, None, is_gated, dtype=torch.float32)
    whole = PackedLinearKernel(join(parts), None, is_gated, dtype=torch.float32)
    assert torch.equal(apart.bytes(), whole.bytes())
    experts = [weight(20, seed=seed) for seed in range(6)]
    stack = PackedStack(experts, None, 3, is_gated, dtype=torch.float32)
    assert torch.equal(stack.dense(), join(experts)[0].dequantise())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_scales_that_share_bytes_are_those_apart(dtype: torch.dtype) -> None:
    one = weight(70, most=15)
    kernel = PackedLinearKernel([one], None, dtype=dtype)
    assert torch.equal(kernel.dense(), one.dequantise())
    ids = torch.tensor([69, 0, 33])
    assert torch.equal(kernel.look_up(ids), one.dequantise()[ids].to(dtype))
    x = torch.randn(20, one.inputs).to(dtype)
    exact = x.double() @ one.dequantise().double().T
    most = x.double().abs() @ one.dequantise().double().abs().T
    found = kernel.product(x).double()
    assert float(((found - exact).abs() / most).max()) < (1e-4 if dtype == torch.float32 else 4e-3)
    assert torch.equal(kernel.product(x[:1]), kernel.product(x)[:1])


def parts(one: PackedWeight) -> tuple[Tensor | None, ...]:
    names = ("super_scales", "super_minimums", "scales", "zeros", "minimums", "codes")
    return tuple(getattr(one, name) for name in names)


@for_each(
    ("change", "named"),
    [
        ({"panels": torch.zeros(2, 2, 5, dtype=torch.uint8)}, "panels are"),
        ({"rows": torch.zeros(64)}, "rows are"),
        ({"rows": torch.full((64,), 33)}, "row 33 of 33"),
        ({"rows": torch.full((64,), -2)}, "row -2 of 33"),
        ({"weights": ()}, "there is no weight"),
        ({"weights": ((None,) * 6,)}, "tensor|attribute"),
        ({"weights": (parts(weight(33))[:5],)}, "6 parts"),
        ({"weights": (parts(weight(33, 1000)),)}, "a part of a weight is"),
        ({"group": 24}, "groups of 24"),
        ({"inputs": 0}, "0 inputs"),
    ],
)
def test_mismatched_panels_are_refused_by_name(change: dict[str, Any], named: str) -> None:
    assert native.kernels is not None
    one = weight(33)
    layout = PanelLayout.of([one])
    given: dict[str, Any] = {
        "panels": torch.zeros(2, 2, layout.num_bytes(), dtype=torch.uint8),
        "rows": torch.zeros(64, dtype=torch.int64),
        "weights": (parts(one),),
        "inputs": 520,
        "group": 32,
        "has_table": True,
        "shares": False,
        "is_by_row": False,
    } | change
    positional = [given.pop(name) for name in ("panels", "rows", "weights")]
    with pytest.raises((ValueError, IndexError, AttributeError, TypeError), match=named):
        native.kernels.write_panels(*positional, **given)


def test_blocks_that_do_not_fit_are_refused() -> None:
    assert native.kernels is not None
    take = native.kernels.take_blocks_apart
    blocks, codes = torch.zeros(3, 18, dtype=torch.uint8), torch.zeros(48, dtype=torch.uint8)
    scales = torch.zeros(3).half()
    take("Q4_0", blocks, codes, scales, None, None, None)
    for name, given, message in (
        ("Q9", (blocks, codes, scales, None), "'Q9' are not known"),
        ("Q4_0", (blocks[:, 1:], codes, scales, None), "blocks are"),
        ("Q4_0", (blocks, codes[1:], scales, None), "codes are"),
        ("Q4_0", (blocks, codes, scales.float(), None), "scales are"),
        ("Q4_0", (blocks, codes, scales, scales), "minimums are"),
    ):
        with pytest.raises(ValueError, match=message):
            take(name, *given, None, None)
