"""Plans of mixers with the gated delta rule, and their reader. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues


MOST_WINDOW: Final = 256
"""Most inputs of a convolution, far beyond any that exists."""


Storing: TypeAlias = Literal["parts", "joined", "apart"]
"""See `DeltaPlan`."""


@dataclass(frozen=True, slots=True)
class DeltaPlan:
    """Mixer with the gated delta rule: see `gated_delta`.

    Attributes:
        heads: Heads of values, H.
        key_heads: Heads of queries and keys, G; each serves H / G next to each other.
        values: Size of a value, V.
        keys: Size of a key, K.
        window: Inputs that the convolution of queries, keys and values sees, W.
        eps: Of the norm behind it.
        storing: Matrices of the files: queries, keys and values in one, rates, decays and gates in
            one each (``"parts"``); queries, keys, values and gates in one, by head of keys, rates
            and decays in another (``"joined"``); or one of each, and convolutions too
            (``"apart"``).
        most_rate: Upper bound of rates, 1 or 2: with 2 a state may have negative eigenvalues.
        rank: Size of the short rows that decays and gates are made of, a row for each (Kimi Delta
            Attention: a decay for each feature of a key, gates that are sigmoids); 0: they are made
            of the stream, with a decay for each head.
    """

    heads: int
    key_heads: int
    values: int
    keys: int
    window: int
    eps: float
    storing: Storing = "parts"
    most_rate: float = 1.0
    rank: int = 0

    @property
    def convolved(self) -> int:
        """Features that go through the convolution, C."""
        return 2 * self.key_heads * self.keys + self.channels

    @property
    def channels(self) -> int:
        """Features of all values."""
        return self.heads * self.values

    @property
    def decays(self) -> int:
        """Numbers that the decays of a token are made of."""
        return self.heads * self.keys if self.rank else self.heads

    @property
    def entering(self) -> tuple[int, int, int]:
        """Sizes of the first product: convolved features and rates, inputs of decays, inputs of
        gates."""
        latent = self.rank, self.rank
        behind = latent if self.rank else (self.heads, self.channels)
        return self.convolved + self.heads, *behind

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the state of a row."""
        return self.heads, self.values, self.keys


def delta_plan(
    values: ConfigValues,
    storing: Storing = "parts",
    *,
    heads: int | None = None,
    key_heads: int | None = None,
    keys: int | None = None,
    value_size: int | None = None,
) -> DeltaPlan:
    """Read the keys that begin with ``linear_``.

    Args:
        values: Of the file.
        storing: See `DeltaPlan`.
        heads: Heads of values, if the file does not say it; ``None``: it must.
        key_heads: The same for heads of keys.
        keys: The same for the size of a key.
        value_size: The same for the size of a value.
    """
    heads = values.count("linear_num_value_heads", default=heads)
    key_heads = values.count("linear_num_key_heads", default=key_heads)
    if heads % key_heads:
        raise values.bad("linear_num_value_heads", heads, f"must be a multiple of {key_heads}")
    return DeltaPlan(
        heads,
        key_heads,
        values.count("linear_value_head_dim", default=value_size),
        values.count("linear_key_head_dim", default=keys),
        values.count("linear_conv_kernel_dim", most=MOST_WINDOW),
        values.epsilon(),
        storing,
    )
