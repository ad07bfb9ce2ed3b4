"""Groups of layers that share a block table because they keep the same kind of thing.

Pages are of one size, so that any page may serve any group: a page holds ``page_size`` positions of
as many layers as a group has at most. The layers of a model are dealt out to groups of about equal
size, so that almost nothing of a page is unused; several groups may be of one kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen.families.config import ModelConfig


TABLE_COST: Final = 1 / 64
"""Part of the memory that one more group, whose table every step reads, has to save."""


class GroupKind(Enum):
    """Kinds of things that the layers of a group keep of a text."""

    FULL = "full"
    """Keys and values of every position, from the beginning."""
    WINDOW = "window"
    """Those of the last positions; pages behind the window go back while the text grows."""
    CROSS = "cross"
    """Those of what an encoder read: written once, read by all samples of a request."""
    STATE = "state"
    """One slot a row, in memory of its own (`states`): a state has no positions to deal out."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers with one block table.

    Attributes:
        kind: Kind of the things that they keep.
        layers: Their numbers, ascending.
        window: Keys that a query of these layers sees, itself included; ``None``: all.
    """

    kind: GroupKind
    layers: tuple[int, ...]
    window: int | None = None


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The groups of a model.

    Attributes:
        depth: Layers that a page has places for. 0 if all keep states (`states`): then a page holds
            nothing and only counts how far a text has come.
        groups: Groups, those that keep everything first. The order is that of a request's tables.
        sources: For each layer the layer whose keys and values it reads; ``None``: it does not
            attend.
    """

    depth: int
    groups: tuple[CacheGroup, ...]
    sources: tuple[int | None, ...]

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Keys that a query of each group sees; all that page planning needs to know."""
        return tuple(group.window for group in self.groups)

    def blocks_seen(self, count: int, page_size: int) -> int:
        """Count the pages that a token sees in the group that sees most, of so many pages of a
        text."""
        seen = [
            count if group.window is None else most_blocks(group.window, page_size)
            for group in self.groups
        ]
        return min(count, max(seen))

    def places(self) -> list[tuple[int, int]]:
        """Give for each layer its group, and its place in that group's pages.

        A layer that does not attend gets those of the first layer that does; it never uses them.
        """
        found = {
            layer: (number, place)
            for number, group in enumerate(self.groups)
            for place, layer in enumerate(group.layers)
        }
        return [(0, 0) if source is None else found[source] for source in self.sources]


def plan_groups(config: ModelConfig) -> GroupPlan:
    """Deal the layers of a model out to groups.

    Args:
        config: The model's.
    """
    if not config.attending:
        return GroupPlan(0, (CacheGroup(GroupKind.FULL, ()),), ())
    layers_of: dict[int | None, list[int]] = {}
    attending = frozenset(config.attending)
    sources = tuple(
        config.keys_of(layer) if layer in attending else None
        for layer in range(config.num_hidden_layers)
    )
    for layer in sorted({source for source in sources if source is not None}):
        layers_of.setdefault(config.window(layer), []).append(layer)
    kinds = sorted(layers_of.items(), key=lambda kind: (kind[0] is not None, kind[0] or 0))
    depth = _depth([len(layers) for _, layers in kinds], has_full=None in layers_of)
    groups = [
        CacheGroup(
            GroupKind.FULL if window is None else GroupKind.WINDOW,
            tuple(layers[first : first + depth]),
            window,
        )
        for window, layers in kinds
        for first in range(0, len(layers), depth)
    ]
    return GroupPlan(depth, tuple(groups), sources)


def _depth(counts: Sequence[int], *, has_full: bool) -> int:
    """Choose the most layers of a group, for kinds of so many layers.

    With the greatest common divisor no place would be unused, but it is 1 for 5 layers beside 29,
    and groups are not free. In a short text the unused places of all groups count; in a long one
    those of the groups that keep everything, whose layers come first.
    """

    def cost(depth: int) -> float:
        unused = [-count % depth for count in counts]
        short, num_groups = sum(unused) / sum(counts), sum(-(-count // depth) for count in counts)
        long = unused[0] / counts[0] if has_full else 0.0
        return short + long + TABLE_COST * num_groups

    return min(range(max(counts), 0, -1), key=cost)


def first_block(window: int | None, position: int, page_size: int) -> int:
    """Return the number of the first page of a text that the token at a position sees."""
    return 0 if window is None else max(position + 1 - window, 0) // page_size


def most_blocks(count: int, page_size: int) -> int:
    """Return the most pages that so many consecutive positions touch, wherever they begin."""
    return (count + page_size - 2) // page_size + 1
