"""Packed weights in panels, as ``asyncgen/native/src/linear_packed.h`` draws them, and back.

Each half of a panel, 16 outputs, is one row of bytes: group by group of inputs the scales of its
outputs and their codes, so that a product reads memory in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from asyncgen import native
from asyncgen.models.kernels.native_linear import HALF, from_halves, to_halves
from asyncgen.models.kernels.packed_weight import SUPER, PackedWeight
from asyncgen.runtime.transfer import host_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

_NAMES: Final = ("super_scales", "super_minimums", "scales", "zeros", "minimums", "codes")
"""The parts of a group, in their order."""


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """Layout of the bytes of half a panel.

    Attributes:
        inputs: See `PackedWeight`, as the following two.
        group: See there.
        table: See there.
        kinds: Dtype of each part that there is.
        is_by_row: True if a row has only one scale.
        shares: True if two-level scales and minimums are so small that they have half a byte each,
            the latter negated, as those of Q2_K.
    """

    inputs: int
    group: int
    table: tuple[int, ...] | None
    kinds: Mapping[str, torch.dtype]
    is_by_row: bool
    shares: bool

    @classmethod
    def of(cls, weights: Sequence[PackedWeight]) -> PanelLayout:
        """Give the layout of weights that are alike."""
        weight = weights[0]
        parts = {name: getattr(weight, name) for name in _NAMES}
        kinds = {name: part.dtype for name, part in parts.items() if part is not None}
        is_by_row = weight.scales.shape[1] < weight.num_groups
        shares = all(_is_small(one) for one in weights)
        if shares:
            del kinds["minimums"]
        return cls(weight.inputs, weight.group, weight.table, kinds, is_by_row, shares)

    @property
    def groups(self) -> int:
        """Groups of a row."""
        return -(-self.inputs // self.group)

    def every(self, name: str) -> int:
        """Return the number of groups that share a part; it stands before the first of them."""
        if name.startswith("super_"):
            return SUPER // self.group
        return self.groups if self.is_by_row and name != "codes" else 1

    def width(self, name: str) -> int:
        """Return the bytes of a part of one group and 16 outputs."""
        if name == "codes":
            return self.group * HALF // (1 if self.table is None else 2)
        return HALF * self.kinds[name].itemsize

    def places(self) -> Iterator[tuple[str, slice, int, int]]:
        """Yield each part, its columns, the begin of these, and their distance.

        Columns that are evenly apart come at once.
        """
        period = max((self.every(name) for name in self.kinds), default=1)
        length = sum(self.width(name) * (period // self.every(name)) for name in self.kinds)
        at = 0
        for first in range(min(period, self.groups)):
            for name in _NAMES:
                if name not in self.kinds or first % self.every(name):
                    continue
                step = period // self.every(name)
                yield name, slice(first // self.every(name), None, step), at, length
                at += self.width(name)

    def num_bytes(self) -> int:
        """Count the bytes of half a panel."""
        counts = {name: -(-self.groups // self.every(name)) for name in self.kinds}
        return sum(self.width(name) * count for name, count in counts.items())


def lay_out(
    weights: Sequence[PackedWeight],
    layout: PanelLayout,
    is_gated: bool,
    panels: Tensor,
    matrices: int = 1,
) -> None:
    """Write weights in panels.

    Args:
        weights: Those of all matrices, one below the other, and alike; each matrix is filled up
            with zeros to whole panels.
        layout: Their layout.
        is_gated: True if halves of a panel are a gate's and an up-projection's.
        panels: Written to, ``[matrices * panels, 2, bytes]`` uint8.
        matrices: Number of matrices.
    """
    assert native.kernels is not None
    outputs = sum(weight.outputs for weight in weights) // matrices
    rows = torch.stack(to_halves(host_range(1, outputs + 1), is_gated), 1).flatten()
    firsts = host_range(matrices)[:, None] * outputs
    rows = torch.where(rows > 0, rows - 1 + firsts, -1).flatten()
    native.kernels.write_panels(
        panels,
        rows,
        tuple(tuple(getattr(weight, name) for name in _NAMES) for weight in weights),
        inputs=layout.inputs,
        group=layout.group,
        has_table=layout.table is not None,
        shares=layout.shares,
        is_by_row=layout.is_by_row,
    )


def take_apart(
    panels: Tensor, layout: PanelLayout, order: Tensor | None, outputs: int, is_gated: bool
) -> PackedWeight:
    """Undo `lay_out`.

    Args:
        panels: ``[panels, 2, bytes]``.
        layout: Their layout.
        order: See `PackedWeight`.
        outputs: Number of outputs.
        is_gated: As that of `lay_out`.
    """
    rows = panels.flatten(0, 1)
    parts: dict[str, Any] = {}
    for name, kind in layout.kinds.items():
        count = -(-layout.groups // layout.every(name))
        parts[name] = torch.empty(
            (len(rows), count, layout.width(name)), dtype=torch.uint8, device="cpu"
        )
        for where, columns, at, step in layout.places():
            if where == name:
                place = parts[name][:, columns]
                place.copy_(_columns(rows, place.shape[1], at, step, layout.width(name)))
        found = _codes_back(parts[name], layout) if name == "codes" else parts[name].view(kind)
        if name != "codes":
            found = found.transpose(1, 2)  # [halves, 16, groups]
        found = found.reshape(len(panels), 2, HALF, -1)
        parts[name] = from_halves(found, outputs, is_gated).contiguous()
    if layout.shares:
        both = parts["scales"].view(torch.uint8)
        parts["minimums"] = -(both >> 4).view(torch.int8)
        parts["scales"] = (both & 15).view(torch.int8)
    return PackedWeight(
        inputs=layout.inputs, group=layout.group, table=layout.table, order=order, **parts
    )


def _is_small(weight: PackedWeight) -> bool:
    """Return whether scales are of 0 … 15 and minimums of -15 … 0, all of two levels."""
    scales, minimums = weight.scales, weight.minimums
    if weight.super_scales is None or weight.super_minimums is None or weight.zeros is not None:
        return False
    assert minimums is not None
    return all(
        int(part.min()) >= least and int(part.max()) <= least + 15
        for rows in (slice(1), slice(None))  # one row usually decides
        for part, least in ((scales[rows], 0), (minimums[rows], -15))
    )


def _columns(rows: Tensor, count: int, at: int, step: int, width: int) -> Tensor:
    """View places that are so many bytes apart, ``[halves, count, width]``."""
    shape, strides = (len(rows), count, width), (rows.stride(0), step, 1)
    return rows.as_strided(shape, strides, rows.storage_offset() + at)


def _codes_back(laid: Tensor, layout: PanelLayout) -> Tensor:
    """Turn codes of halves of panels, ``[halves, groups, bytes]`` uint8, into ``[halves, 16,
    …]``."""
    count, groups = laid.shape[:2]
    if layout.table is None:
        pairs = laid.view(count, groups, layout.group // 2, HALF, 2)
        return pairs.permute(0, 3, 1, 2, 4).reshape(count, HALF, -1).view(torch.int8)
    words = laid.view(count, groups, layout.group // 8, HALF, 2, 2).permute(0, 3, 1, 2, 4, 5)
    even, odd = words.unbind(-2)  # [halves, 16, groups, words, bytes]
    low, high = even & 15 | (odd & 15) << 4, even >> 4 | odd & 240
    return torch.stack((low, high), dim=-1).reshape(count, HALF, -1)
