"""Read the kinds of layers that do not all attend. This module imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from asyncgen.families.plans.config_values import MOST_LAYERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from asyncgen.families.plans.config_values import ConfigValues, Kinds

FULL: Final = "full_attention"
STATE: Final = "linear_attention"
"""A state in the place of attention."""
BOTH: Final = "hybrid"
"""A state beside attention."""
FEED: Final = "mlp"
"""A feed-forward alone."""
EXPERTS: Final = "moe"
"""A feed-forward of experts alone."""

SLIDING: Final = frozenset({"sliding_attention", "chunked_attention"})
ATTENDING: Final = SLIDING | {FULL, BOTH}
MIXING: Final = frozenset({STATE, BOTH})

STATED: Mapping[str, str] = {FULL: FULL, STATE: STATE}
"""Names that most files have for kinds."""


def num_layers(values: ConfigValues) -> int:
    """Read the number of layers."""
    return values.count("num_hidden_layers", most=MOST_LAYERS)


def all_of(kind: str) -> Callable[[ConfigValues], Kinds]:
    """Let every layer be of one kind."""
    return lambda values: (kind,) * num_layers(values)


def listed(
    otherwise: Callable[[ConfigValues, int], str],
    names: Mapping[str, str] = STATED,
    key: str = "layer_types",
    layers: Callable[[ConfigValues], int] = num_layers,
) -> Callable[[ConfigValues], Kinds]:
    """Read the kind of each layer from a list.

    Args:
        otherwise: Kind of a layer of a number, if there is no list.
        names: The files' names of each kind.
        key: Key of the list.
        layers: Number of layers.
    """

    def kinds(values: ConfigValues) -> Kinds:
        count = layers(values)
        allowed = f"one of {', '.join(names)}"
        stated = values.listed(
            key, count, lambda name: isinstance(name, str) and name in names, allowed
        )
        if stated is None:
            return tuple(otherwise(values, layer) for layer in range(count))
        return tuple(names[name] for name in stated)

    return kinds


def full_every(key: str) -> Callable[[ConfigValues, int], str]:
    """Let each n-th layer attend, with the number n under a key."""
    return lambda values, layer: FULL if (layer + 1) % values.count(key) == 0 else STATE
