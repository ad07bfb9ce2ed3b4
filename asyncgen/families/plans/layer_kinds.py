"""Kinds of layers that do not all attend, as files list them. Imports no torch."""

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
"""One of experts alone."""

SLIDING: Final = frozenset({"sliding_attention", "chunked_attention"})
ATTENDING: Final = SLIDING | {FULL, BOTH}
MIXING: Final = frozenset({STATE, BOTH})

STATED: Mapping[str, str] = {FULL: FULL, STATE: STATE}
"""Names that most files have for kinds."""


def num_layers(values: ConfigValues) -> int:
    """How many layers the file says that there are."""
    return values.count("num_hidden_layers", most=MOST_LAYERS)


def all_of(kind: str) -> Callable[[ConfigValues], Kinds]:
    """Every layer is of one kind."""
    return lambda values: (kind,) * num_layers(values)


def listed(
    otherwise: Callable[[ConfigValues, int], str],
    names: Mapping[str, str] = STATED,
    key: str = "layer_types",
    layers: Callable[[ConfigValues], int] = num_layers,
) -> Callable[[ConfigValues], Kinds]:
    """What a list of the file says of each layer.

    Args:
        otherwise: The kind of a layer of a number, where there is no list.
        names: What files call each kind.
        key: Where the list stands.
        layers: How many there are.
    """

    def kinds(values: ConfigValues) -> Kinds:
        count = layers(values)
        allowed = f"one of {', '.join(names)}"
        stated = values.listed(key, count, lambda name: name in names, allowed)
        if stated is None:
            return tuple(otherwise(values, layer) for layer in range(count))
        return tuple(names[name] for name in stated)

    return kinds


def full_every(key: str) -> Callable[[ConfigValues, int], str]:
    """Each n-th layer attends, with the number n under a key."""
    return lambda values, layer: FULL if (layer + 1) % values.count(key) == 0 else STATE
