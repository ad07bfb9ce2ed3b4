"""The layouts of packed weights: their formula, their rows, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from asyncgen.models.kernels.packed_weight import SIGNED, SUPER, UNSIGNED, PackedWeight, join
from tests.cases import for_each


def random_weight(
    outputs: int = 5, inputs: int = 48, group: int = 32, **parts: object
) -> PackedWeight:
    """A weight of 8 bits with float16 scales; ``parts`` take the place of others."""
    groups = -(-inputs // group)
    made: dict[str, object] = {
        "codes": torch.randint(-127, 128, (outputs, groups * group), dtype=torch.int8),
        "scales": torch.rand(outputs, groups).half(),
        **parts,
    }
    return PackedWeight(inputs=inputs, group=group, **made)  # type: ignore[arg-type]


def test_numbers_are_scaled_by_group() -> None:
    weight = random_weight()
    expected = weight.codes.float() * weight.scales.float().repeat_interleave(32, dim=1)
    assert torch.equal(weight.dequantise(), expected[:, :48])


def test_codes_are_halves_of_bytes_and_read_from_the_table() -> None:
    codes = torch.tensor([[0x10, 0x32] + [0xFE] * 6], dtype=torch.uint8)
    weight = PackedWeight(
        codes=codes, inputs=16, group=16, scales=torch.tensor([[0.5]]).bfloat16(), table=SIGNED
    )
    assert weight.dequantise().tolist() == [[-4.0, -3.5, -3.0, -2.5] + [3.0, 3.5] * 6]


def test_zero_points_are_taken_off_and_minimums_added() -> None:
    weight = random_weight(
        zeros=torch.full((5, 2), 3, dtype=torch.int8), minimums=torch.full((5, 2), -2.0)[:, :2]
    )
    scales = weight.scales.float().repeat_interleave(32, dim=1)
    expected = (weight.codes.float() - 3) * scales - 2
    assert torch.equal(weight.dequantise(), expected[:, :48])


def test_two_level_scales_multiply_floats_of_256_inputs() -> None:
    small = torch.randint(0, 64, (3, 10), dtype=torch.int8)
    large = torch.rand(3, 2).half()
    weight = PackedWeight(
        codes=torch.randint(0, 256, (3, 160), dtype=torch.uint8),
        inputs=320,
        group=32,
        scales=small,
        super_scales=large,
        minimums=small,
        super_minimums=-large,
        table=UNSIGNED,
    )
    whole = small.float() * large.float().repeat_interleave(SUPER // 32, dim=1)[:, :10]
    whole = whole.repeat_interleave(32, dim=1)
    codes = torch.stack((weight.codes & 15, weight.codes >> 4), dim=2).flatten(1)
    assert torch.equal(weight.dequantise(), codes.float() * whole - whole)


def test_columns_may_be_of_other_inputs() -> None:
    order = torch.randperm(48).int()
    straight = random_weight()
    mixed = random_weight(codes=straight.codes, scales=straight.scales, order=order)
    assert torch.equal(mixed.dequantise()[:, order.long()], straight.dequantise())


def test_adjacent_equal_layouts_are_joined_and_rows_selected() -> None:
    one, two, other = random_weight(), random_weight(3), random_weight(4, group=16)
    joined = join([one, two, other])
    assert [part.outputs for part in joined] == [8, 4]
    both = torch.cat((one.dequantise(), two.dequantise()))
    assert torch.equal(joined[0].dequantise(), both)
    index = torch.tensor([7, 0, 5])
    assert torch.equal(joined[0].rows(index).dequantise(), both[index])


@for_each(
    ("parts", "named"),
    [
        ({"group": 24}, "group is 24"),
        ({"codes": torch.zeros(5, 48, dtype=torch.int8)}, "codes are"),
        ({"scales": torch.ones(5, 3)}, "scales are"),
        ({"zeros": torch.ones(5, 2)}, "zeros are"),
        ({"minimums": torch.ones(5, 2, dtype=torch.int8)}, "minimums are"),
        ({"super_scales": torch.ones(5, 2)}, "super_scales are"),
        ({"super_minimums": torch.ones(5, 1).half()}, "without minimums"),
        ({"order": torch.arange(48)}, "order are"),
    ],
)
def test_parts_that_do_not_fit_are_named(parts: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        random_weight(**parts)  # type: ignore[arg-type]
