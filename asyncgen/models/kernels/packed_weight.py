"""The two layouts of packed weights: codes of 4 bits through a table, and integers of 8 bits.

A matrix ``[out, in]`` is cut into groups of inputs. The number of an element is its integer, or
what the table holds for its code; its value is

    scale · (number - zero) + minimum

with one scale a group, and where they are there one zero point and one minimum a group. Scales and
minimums are floats as a file stores them, or *two-level*: a small integer a group times a float16
that 256 inputs share, as in the K types of GGUF; that product is exact in float32. `dequantise` is
the formula that every kernel is tested against.

This module knows neither files nor kernels. What a format's numbers are goes in as they are:

| Format | number | table | group | scale | zero | minimum |
|---|---|---|---|---|---|---|
| Q4_0 | code | -8 … 7 | 32 | float16 | | |
| Q4_1 | code | 0 … 15 | 32 | float16 | | float16 |
| Q4_K | code | 0 … 15 | 32 | int8 × float16 | | int8 × float16 (negated) |
| Q8_0 | int8 | | 32 | float16 | | |
| Q6_K | int8 | | 16 | int8 × float16 | | |
| IQ4_NL | code | its 16 | 32 | float16 | | |
| MXFP4 | code | twice E2M1 | 32 | half of E8M0, float32 | | |
| GPTQ, AWQ | code | 0 … 15 | 32 … 128 | float16 | int8 | |
| one scale a row | int8 | | 128 | any float, ``[out, 1]`` | int8 ``[out, 1]`` | |
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

GROUPS: Final = (16, 32, 64, 128)
"""Numbers of inputs that may share a scale."""

SUPER: Final = 256
"""Inputs that share the float of a two-level scale."""

LARGEST: Final = 1 << 16
"""Limit of a table's largest number (plus 128 if there are zero points) times the group: then
the sum of a group's products with inputs of 16 bits fits into 32."""

UNSIGNED: Final = tuple(range(16))
"""The table of codes that are numbers themselves."""

SIGNED: Final = tuple(range(-8, 8))
"""The table of codes that are 8 more than their number."""

_FLOATS: Final = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedWeight:
    """A matrix ``[out, in]`` in 4 or 8 bits.

    Its last group may be cut off by ``inputs``: codes are there for whole groups, those behind the
    last input mean nothing.

    Attributes:
        codes: ``[out, groups * group / 2]`` uint8 with a table: byte b holds the code of input 2b
            in its lower half and that of 2b + 1 in its upper one. Without a table ``[out, groups *
            group]`` int8.
        inputs: ``in``: number of inputs.
        group: Inputs that share a scale, one of `GROUPS`.
        scales: ``[out, groups]``, or ``[out, 1]`` for one a row: float16, bfloat16 or float32; or
            int8, with ``super_scales``.
        table: The number of each of 16 codes, whole, see `LARGEST`; ``None``: codes are 8-bit
            numbers.
        zeros: int8 of the shape of ``scales``, subtracted from a number; or ``None``.
        minimums: Of the shape of ``scales``, added to a scaled number: floats or, with
            ``super_minimums``, int8; or ``None``.
        super_scales: ``[out, ceil(groups * group / 256)]`` float16, factors of ``scales``; or
            ``None``.
        super_minimums: Likewise, of ``minimums``.
        order: Input of each column of the codes, ``[in]`` int32 (GPTQ with ``desc_act``); ``None``:
            its own.
    """

    codes: Tensor
    inputs: int
    group: int
    scales: Tensor
    table: tuple[int, ...] | None = None
    zeros: Tensor | None = None
    minimums: Tensor | None = None
    super_scales: Tensor | None = None
    super_minimums: Tensor | None = None
    order: Tensor | None = None

    def __post_init__(self) -> None:
        """Check that the parts fit together.

        Raises:
            ValueError: They do not; names the part, and what it should be.
        """
        if self.group not in GROUPS:
            raise ValueError(f"group is {self.group} and must be one of {GROUPS}")
        outputs, wide = len(self.codes), self.num_groups * self.group
        _check("codes", self.codes, (outputs, wide // 2 if self.table else wide), self._kinds())
        counts = {1, self.num_groups}
        shapes = [(outputs, count) for count in counts]
        if tuple(self.scales.shape) not in shapes:
            raise ValueError(f"scales are {list(self.scales.shape)} and must be one of {shapes}")
        shape = (outputs, self.scales.shape[1])
        supers = (outputs, -(-wide // SUPER))
        pairs = (
            ("scales", self.scales, self.super_scales),
            ("minimums", self.minimums, self.super_minimums),
        )
        for name, small, large in pairs:
            if large is not None:
                _check(f"super_{name}", large, supers, (torch.float16,))
                shape = (outputs, self.num_groups)
            if small is not None:
                _check(name, small, shape, _FLOATS if large is None else (torch.int8,))
            elif large is not None:
                raise ValueError(f"super_{name} are there without {name}")
        if self.zeros is not None:
            _check("zeros", self.zeros, tuple(self.scales.shape), (torch.int8,))
        if self.order is not None:
            _check("order", self.order, (self.inputs,), (torch.int32,))
        if self.table is not None:
            most = LARGEST // self.group - (0 if self.zeros is None else 128)
            if len(self.table) != 16 or max(map(abs, self.table)) > most:
                raise ValueError(f"table is {self.table} and must be 16 numbers of {most} at most")

    @property
    def outputs(self) -> int:
        """``out``."""
        return len(self.codes)

    @property
    def num_groups(self) -> int:
        """Groups of a row, the last of which may be cut off."""
        return -(-self.inputs // self.group)

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self._tensors().values())

    def numbers(self) -> Tensor:
        """Look up the number of each element by columns, ``[out, groups * group]`` int16."""
        if self.table is None:
            return self.codes.to(torch.int16)
        table = torch.tensor(self.table, dtype=torch.int16, device="cpu")
        codes = torch.stack((self.codes & 15, self.codes >> 4), dim=2).flatten(1)
        return table[codes.int()]

    def full_scales(self) -> Tensor:
        """Compute the scale of each group, ``[out, groups]`` float32."""
        return self._whole(self.scales, self.super_scales)

    def full_minimums(self) -> Tensor | None:
        """Compute the minimum of each group, ``[out, groups]`` float32; ``None``: none is added."""
        if self.minimums is None:
            return None
        return self._whole(self.minimums, self.super_minimums)

    def dequantise(self) -> Tensor:
        """Compute the values, ``[out, in]`` float32: each operation of the formula rounded once."""
        numbers = self.numbers().view(self.outputs, self.num_groups, self.group).float()
        if self.zeros is not None:
            numbers -= self.zeros.float().unsqueeze(2)
        values = numbers.mul_(self.full_scales().unsqueeze(2))
        minimums = self.full_minimums()
        if minimums is not None:
            values += minimums.unsqueeze(2)
        values = values.flatten(1)[:, : self.inputs]
        if self.order is None:
            return values.contiguous()
        placed = torch.empty_like(values)
        placed[:, self.order.long()] = values
        return placed

    def rows(self, index: Tensor | slice) -> PackedWeight:
        """Select rows of the matrix, in an order.

        Args:
            index: ``[rows]`` int64, or a slice.
        """
        parts: dict[str, Any] = {
            name: part[index] for name, part in self._tensors().items() if name != "order"
        }
        return replace(self, **parts)

    def is_finite(self) -> bool:
        """Return whether all values are finite: scales and minimums decide."""
        factors = (self.scales, self.minimums, self.super_scales, self.super_minimums)
        floats = [one for one in factors if one is not None and one.is_floating_point()]
        # A sum reads them once; the size of the numbers does not matter.
        sums = (one.sum(dtype=torch.float32).isfinite() for one in floats)
        return all(sums) or all(bool(one.isfinite().all()) for one in floats)

    def is_like(self, other: PackedWeight) -> bool:
        """Return whether rows of both could be those of one matrix."""
        return self._likeness() == other._likeness() and _same(self.order, other.order)

    def _likeness(self) -> tuple[object, ...]:
        kinds = {name: (part.dtype, *part.shape[1:]) for name, part in self._tensors().items()}
        return self.inputs, self.group, self.table, kinds

    def _tensors(self) -> dict[str, Tensor]:
        parts = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: part for name, part in parts.items() if isinstance(part, torch.Tensor)}

    def _kinds(self) -> tuple[torch.dtype, ...]:
        return (torch.int8,) if self.table is None else (torch.uint8,)

    def _whole(self, small: Tensor, large: Tensor | None) -> Tensor:
        whole = small.float()
        if large is not None:
            repeats = SUPER // self.group
            whole *= large.float().repeat_interleave(repeats, dim=1)[:, : self.num_groups]
        return whole.expand(self.outputs, self.num_groups)


def group_alike(parts: Sequence[PackedWeight]) -> list[list[PackedWeight]]:
    """Group matrices one below the other into runs of neighbours that could be one.

    Args:
        parts: At least one, of the same inputs.
    """
    runs: list[list[PackedWeight]] = []
    for part in parts:
        if runs and runs[-1][0].is_like(part):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def join(parts: Sequence[PackedWeight]) -> list[PackedWeight]:
    """Join neighbours that are alike to one matrix.

    Args:
        parts: As those of `group_alike`.
    """
    return [_cat(run) for run in group_alike(parts)]


def _cat(parts: Sequence[PackedWeight]) -> PackedWeight:
    first = parts[0]
    if len(parts) == 1:
        return first
    names = [name for name in first._tensors() if name != "order"]
    joined: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts]) for name in names
    }
    return replace(first, **joined)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _check(name: str, tensor: Tensor, shape: tuple[int, ...], kinds: Sequence[torch.dtype]) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype not in kinds:
        raise ValueError(
            f"{name} are {list(tensor.shape)} {tensor.dtype} and must be {list(shape)} in one of "
            f"{[str(kind) for kind in kinds]}"
        )
