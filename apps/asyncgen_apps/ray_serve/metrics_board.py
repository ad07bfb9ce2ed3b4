"""A board with the newest figures of all replicas: a handle reaches one of them, never all."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgen import MetricsSnapshot

FRESH_SECONDS = 10.0
"""What was told longer ago belongs to a replica that is gone."""


class Board:
    """Figures by replica."""

    def __init__(self) -> None:
        """Nothing was told."""
        self._told: dict[str, tuple[float, MetricsSnapshot]] = {}

    async def tell(self, replica: str, figures: MetricsSnapshot) -> None:
        """Take the newest figures of a replica."""
        self._told[replica] = monotonic(), figures

    async def read(self) -> dict[str, MetricsSnapshot]:
        """The figures of the replicas that are there."""
        oldest = monotonic() - FRESH_SECONDS
        self._told = {name: told for name, told in self._told.items() if told[0] > oldest}
        return {name: figures for name, (_, figures) in self._told.items()}
