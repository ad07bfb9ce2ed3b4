"""Packed weights in panels, as ``asyncgen/native/src/linear_packed.h`` draws them, and back.

Each half of a panel, 16 outputs, is one row of bytes: group by group of inputs the scales of its
outputs and their codes, so that a product reads memory in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from asyncgen.models.kernels.native_linear import HALF, halves, whole
from asyncgen.packed.weight import SUPER, PackedWeight

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

_PANELS: Final = 64
"""Panels that are laid out at once: what is made on the way is small beside a weight."""

_NAMES: Final = ("super_scales", "super_minimums", "scales", "zeros", "minimums", "codes")
"""The parts of a group, in their order."""


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """What the bytes of half a panel are.

    Attributes:
        inputs: See `PackedWeight`, as the following two.
        group: See there.
        table: See there.
        kinds: The dtype of each part that there is.
        is_by_row: Whether a row has but one scale.
    """

    inputs: int
    group: int
    table: tuple[int, ...] | None
    kinds: Mapping[str, torch.dtype]
    is_by_row: bool

    @classmethod
    def of(cls, weight: PackedWeight) -> PanelLayout:
        """The layout of a weight."""
        parts = {name: getattr(weight, name) for name in _NAMES}
        kinds = {name: part.dtype for name, part in parts.items() if part is not None}
        is_by_row = weight.scales.shape[1] < weight.num_groups
        return cls(weight.inputs, weight.group, weight.table, kinds, is_by_row)

    @property
    def groups(self) -> int:
        """Groups of a row."""
        return -(-self.inputs // self.group)

    def every(self, name: str) -> int:
        """A part stands before the first of so many groups."""
        if name.startswith("super_"):
            return SUPER // self.group
        return self.groups if self.is_by_row and name != "codes" else 1

    def width(self, name: str) -> int:
        """Bytes of a part of one group and 16 outputs."""
        if name == "codes":
            return self.group * HALF // (1 if self.table is None else 2)
        return HALF * self.kinds[name].itemsize

    def places(self) -> Iterator[tuple[str, slice, int, int]]:
        """Each part, which of its columns, where these begin, and how far they are apart.

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
        """Bytes of half a panel."""
        counts = {name: -(-self.groups // self.every(name)) for name in self.kinds}
        return sum(self.width(name) * count for name, count in counts.items())


def lay_out(weight: PackedWeight, is_gated: bool, panels: Tensor) -> None:
    """Write a weight in panels.

    Args:
        weight: Any packed weight; filled up with zeros to whole panels.
        is_gated: Whether halves of a panel are of a gate and of what it lets through.
        panels: Where to, ``[panels, 2, bytes]`` uint8.
    """
    layout = PanelLayout.of(weight)
    chosen = torch.stack(halves(torch.arange(1, weight.outputs + 1), is_gated), 1)
    chosen -= 1  # [panels, 2, 16], -1 where there is no such output
    for start in range(0, len(chosen), _PANELS):
        index = chosen[start : start + _PANELS].flatten()
        part = weight.rows(index.clamp(min=0))
        _fill(panels[start : start + _PANELS], part, layout, index >= 0)


def take_apart(
    panels: Tensor, layout: PanelLayout, order: Tensor | None, outputs: int, is_gated: bool
) -> PackedWeight:
    """The opposite of `lay_out`.

    Args:
        panels: ``[panels, 2, bytes]``.
        layout: What they are.
        order: See `PackedWeight`.
        outputs: How many outputs there are.
        is_gated: As that of `lay_out`.
    """
    rows = panels.flatten(0, 1)
    parts: dict[str, Any] = {}
    for name, kind in layout.kinds.items():
        count = -(-layout.groups // layout.every(name))
        parts[name] = torch.empty((len(rows), count, layout.width(name)), dtype=torch.uint8)
        for where, columns, at, step in layout.places():
            if where == name:
                place = parts[name][:, columns]
                place.copy_(_columns(rows, place.shape[1], at, step, layout.width(name)))
        found = _codes_back(parts[name], layout) if name == "codes" else parts[name].view(kind)
        if name != "codes":
            found = found.transpose(1, 2)  # [halves, 16, groups]
        found = found.reshape(len(panels), 2, HALF, -1)
        parts[name] = whole(found, outputs, is_gated).contiguous()
    return PackedWeight(
        inputs=layout.inputs, group=layout.group, table=layout.table, order=order, **parts
    )


def _fill(panels: Tensor, weight: PackedWeight, layout: PanelLayout, is_there: Tensor) -> None:
    """Write the outputs of some panels, of which some are not there and become zeros."""
    rows = panels.flatten(0, 1)  # [halves, bytes]
    count = len(rows)
    for name, columns, at, step in layout.places():
        part = getattr(weight, name)
        if name == "codes":
            laid = _codes(part, layout)[:, columns]
        else:
            part = torch.where(is_there[:, None], part, torch.zeros((), dtype=part.dtype))
            laid = part.view(count, HALF, -1).transpose(1, 2)[:, columns].contiguous()
            laid = laid.view(torch.uint8)
        _columns(rows, laid.shape[1], at, step, layout.width(name)).copy_(laid)


def _columns(rows: Tensor, count: int, at: int, step: int, width: int) -> Tensor:
    """A view ``[halves, count, width]`` of places that are so many bytes apart."""
    shape, strides = (len(rows), count, width), (rows.stride(0), step, 1)
    return rows.as_strided(shape, strides, rows.storage_offset() + at)


def _codes(codes: Tensor, layout: PanelLayout) -> Tensor:
    """Codes of halves of panels, ``[halves, groups, bytes]`` uint8, of ``[halves * 16, …]``."""
    count, groups = len(codes) // HALF, layout.groups
    if layout.table is None:
        pairs = codes.view(count, HALF, groups, layout.group // 2, 2)
        return pairs.permute(0, 2, 3, 1, 4).reshape(count, groups, -1).view(torch.uint8)
    four = codes.view(count, HALF, groups, layout.group // 8, 4)
    codes_of = (four & 15, four >> 4)  # of even inputs, and of odd ones
    words = [numbers[..., 0::2] | numbers[..., 1::2] << 4 for numbers in codes_of]
    laid = torch.stack(words, dim=-2)  # [halves, 16, groups, words, 2, bytes]
    return laid.permute(0, 2, 3, 1, 4, 5).reshape(count, groups, -1)


def _codes_back(laid: Tensor, layout: PanelLayout) -> Tensor:
    """The opposite of `_codes`, ``[halves, 16, …]``."""
    count, groups = laid.shape[:2]
    if layout.table is None:
        pairs = laid.view(count, groups, layout.group // 2, HALF, 2)
        return pairs.permute(0, 3, 1, 2, 4).reshape(count, HALF, -1).view(torch.int8)
    words = laid.view(count, groups, layout.group // 8, HALF, 2, 2).permute(0, 3, 1, 2, 4, 5)
    even, odd = words.unbind(-2)  # [halves, 16, groups, words, bytes]
    low, high = even & 15 | (odd & 15) << 4, even >> 4 | odd & 240
    return torch.stack((low, high), dim=-1).reshape(count, HALF, -1)
