"""Numbers quantised and read back: as quanto and hqq do it, and in the fewest bytes."""

from __future__ import annotations

import math
from typing import Any

import torch

from asyncgen.cache.quantized.backends import BACKENDS
from asyncgen.cache.quantized.packing import Grouping, pack, unpack
from tests.cache.quantized.made import expected, odd, states
from tests.cases import for_each

KINDS = [
    (name, bits, axis)
    for name, backend in BACKENDS.items()
    for bits in backend.bits
    for axis in backend.axes
]


@for_each("bits", [1, 2, 3, 4, 8])
@for_each("count", [1, 7, 8, 13, 1000])
def test_packed_levels_come_back_and_take_no_more_than_their_bits(bits: int, count: int) -> None:
    levels = torch.randint(0, 2**bits, (count,), dtype=torch.uint8)
    packed = pack(levels, bits)
    assert torch.equal(unpack(packed, bits, count), levels)
    parts = [2, 1] if bits == 3 else [bits]
    assert packed.nbytes == sum(math.ceil(count * part / 8) for part in parts)


def name_of(case: dict[str, Any]) -> str:
    kind = case.get("odd") or case["dtype"]
    return f"{case['backend']}{case['nbits']}-{case['axis']}-{case['size']}-{kind}"


@for_each("case", expected()["numbers"], ids=name_of)
def test_numbers_are_those_of_the_packages(case: dict[str, Any]) -> None:
    dtype = getattr(torch, case["dtype"])
    given = odd(case["odd"]) if "odd" in case else states(case["shape"], case["seed"]).to(dtype)
    backend = BACKENDS[case["backend"]]
    grouping = Grouping(case["nbits"], case["axis"], case["size"])
    packed = backend.quantize(given, grouping)
    found = backend.dequantize(packed, grouping)
    assert (found.shape, found.dtype, packed.levels.dtype) == (given.shape, dtype, torch.uint8)
    wanted = torch.tensor(case["result"]).view(given.shape)
    torch.testing.assert_close(found.float(), wanted, atol=6e-5, rtol=0)


@for_each(("name", "bits", "axis"), KINDS)
def test_groups_that_do_not_come_out_even_are_filled_up(name: str, bits: int, axis: int) -> None:
    given, grouping = states([2, 2, 7, 8], 0), Grouping(bits, axis, 5)
    backend = BACKENDS[name]
    found = backend.dequantize(backend.quantize(given, grouping), grouping)
    assert found.shape == given.shape
    spread = float(given.max() - given.min())
    # No number is further off than the least number of levels allows.
    assert float((found - given).abs().max()) <= spread / (2**bits - 1)


@for_each(("name", "bits", "axis"), KINDS)
def test_one_level_after_another_comes_nearer(name: str, bits: int, axis: int) -> None:
    given, backend = states([1, 4, 32, 16], 1), BACKENDS[name]
    errors = []
    for each in backend.bits:
        grouping = Grouping(each, axis, 16)
        found = backend.dequantize(backend.quantize(given, grouping), grouping)
        errors.append(float((found - given).square().mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[backend.bits.index(bits)] > 0


def test_a_number_that_is_none_is_not_hidden() -> None:
    given = states([1, 2, 4, 8], 0)
    given[0, 1, 2, 3] = math.nan
    for name, bits, axis in KINDS:
        grouping = Grouping(bits, axis, 8)
        found = BACKENDS[name].dequantize(BACKENDS[name].quantize(given, grouping), grouping)
        assert found.isnan().any()
