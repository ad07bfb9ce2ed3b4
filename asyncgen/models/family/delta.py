"""Mixers with the gated delta rule as files describe them. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from asyncgen.models.family.values import ConfigValues


MOST_WINDOW: Final = 256
"""Inputs of a convolution, far beyond any that exists."""


@dataclass(frozen=True, slots=True)
class DeltaPlan:
    """A mixer with the gated delta rule: see `gated_delta`.

    Attributes:
        heads: Heads of values, H.
        key_heads: Heads of queries and keys, G; each serves H / G next to each other.
        values: Size of a value, V.
        keys: Size of a key, K.
        window: Inputs that the convolution of queries, keys and values sees, W.
        eps: Of the norm behind it.
        is_joined: Whether files have queries, keys, values and gates in one matrix, by head of
            keys, and rates and decays in another.
    """

    heads: int
    key_heads: int
    values: int
    keys: int
    window: int
    eps: float
    is_joined: bool = False

    @property
    def convolved(self) -> int:
        """Features that go through the convolution, C."""
        return 2 * self.key_heads * self.keys + self.channels

    @property
    def channels(self) -> int:
        """Features of all values."""
        return self.heads * self.values

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the state of a row."""
        return self.heads, self.values, self.keys


def delta_plan(values: ConfigValues, *, is_joined: bool = False) -> DeltaPlan:
    """Read the keys that begin with ``linear_``."""
    heads, key_heads = values.count("linear_num_value_heads"), values.count("linear_num_key_heads")
    if heads % key_heads:
        raise values.bad("linear_num_value_heads", heads, f"must be a multiple of {key_heads}")
    return DeltaPlan(
        heads,
        key_heads,
        values.count("linear_value_head_dim"),
        values.count("linear_key_head_dim"),
        values.count("linear_conv_kernel_dim", most=MOST_WINDOW),
        values.epsilon(),
        is_joined,
    )
