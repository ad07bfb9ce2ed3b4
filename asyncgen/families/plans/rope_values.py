"""Read rotary positions in the several ways of a ``config.json``. This module imports no torch."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen.families.plans.config_values import MOST, bad, number, present
from asyncgen.families.plans.declaration import settled
from asyncgen.families.plans.rope_config import DEFAULT_THETA, QueryScaling, RopeConfig

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues, Kinds
    from asyncgen.families.plans.declaration import Family


_BESIDE = ("rope_theta", "original_max_position_embeddings")
"""Keys that may also stand outside of a rope's parameters."""

_ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional")
_NUMBERS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)
"""Parameters that are read as they are written."""

_SLIDING = "sliding_attention"
_KINDS = ("full_attention", _SLIDING)
_log = logging.getLogger("asyncgen.models")


def rope_values(
    values: ConfigValues, family: Family, kinds: Kinds, *, positions: int, head_dim: int
) -> tuple[RopeConfig, tuple[RopeConfig, ...] | None]:
    """Read ``rope_scaling`` (older files) or ``rope_parameters``, nested or beside the rest.

    With `Family.ropes_by_kind` there are parameters for each kind of layer. A sliding layer whose
    parameters the file does not give has an unscaled rope with a theta of
    ``rope_local_base_freq``. ``rope_parameters`` that are not by kind are then not read, as by the
    reference, and a warning says so.

    Args:
        values: The file's values.
        family: Settings of the family.
        kinds: Kind of each layer.
        positions: Context length.
        head_dim: Size of a head.

    Returns:
        The rope of layers that do not slide, and that of each layer where they differ.
    """
    part = settled(family.partial_rotary_factor, values)
    without = RopeConfig(
        rope_type="none", query_scaling=settled(family.no_rope_query_scaling, values)
    )
    key = "rope_scaling" if values.value("rope_scaling") else "rope_parameters"
    stated = values.value(key) or {}
    if not isinstance(stated, Mapping):
        raise bad(key, stated, "must be an object with a rope_type")
    if part is None:
        for source in (stated, values.raw):
            if source.get("partial_rotary_factor") not in (None, 1, 1.0):
                value = source["partial_rotary_factor"]
                allowed = "must be 1.0: only whole heads can be rotated"
                raise bad("partial_rotary_factor", value, allowed)
    parts = _parts_by_kind(stated, key) if family.ropes_by_kind else {"full_attention": stated}
    top = {name: values.value(name) for name in _BESIDE}
    read = {}
    for kind, stated in parts.items():
        beside = {**top, "rope_theta": _theta_of_sliding(values)} if kind == _SLIDING else top
        rope = _rope(stated, key, beside, positions)
        if family.has_rope_alpha:
            rope = _stretched(rope, stated, key, head_dim)
        scaling = _query_scaling(stated, key, rope) if family.scales_queries else None
        own = part or 1.0
        if part is not None and stated.get("partial_rotary_factor") is not None:
            own = _part_of_head(number(stated, "partial_rotary_factor", 1.0))
        read[kind] = replace(rope, partial_rotary_factor=own, query_scaling=scaling)
    rope = read["full_attention"]

    def rope_of(layer: int, kind: str) -> RopeConfig:
        if not family.has_rope(values, layer, kind):
            return without
        found, theta = read.get(kind, rope), family.layer_theta(values, layer)
        return found if theta is None else replace(found, theta=theta)

    each = tuple(rope_of(layer, kind) for layer, kind in enumerate(kinds))
    if len(set(each)) == 1:
        return each[0], None
    return rope, each


def _parts_by_kind(stated: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of layers that do not slide, and of those that do."""
    found = {kind: stated[kind] for kind in _KINDS if isinstance(stated.get(kind), Mapping)}
    if stated and not found:
        if key == "rope_scaling":  # older files: for layers that do not slide
            return {"full_attention": stated, _SLIDING: {}}
        _log.warning("`rope_parameters` are not read: they are not by kind of layer (%s)", stated)
    return dict.fromkeys(_KINDS, {}) | found


def _theta_of_sliding(values: ConfigValues) -> float:
    """Return the theta of sliding layers, if their parameters do not say it."""
    return values.positive("rope_local_base_freq", values.positive("rope_theta", DEFAULT_THETA))


def require_pairs(rope: RopeConfig, size: int) -> None:
    """Refuse a rope that does not fit heads of a size.

    Raises:
        ModelLoadError: The key and what it must be.
    """
    rotated = rope.exponents(size)
    if rotated % 2 and rope.rope_type in ("yarn", "longrope"):
        allowed = f"rotates {rotated} features of a head, which rope type {rope.rope_type!r} "
        raise bad("partial_rotary_factor", rope.partial_rotary_factor, allowed + "needs in pairs")
    if rope.rope_type == "dynamic" and rotated < 4:
        raise bad("head_dim", size, "must be at least 4 for rope type 'dynamic'")
    for name, factors in (
        ("short_factor", rope.short_factors),
        ("long_factor", rope.long_factors),
    ):
        if factors is not None and len(factors) != rotated // 2:
            allowed = f"must list a number for each of the {rotated // 2} rotated pairs"
            raise bad(f"rope_scaling.{name}", list(factors), allowed)


def partial_rotary_factor(values: ConfigValues) -> float:
    """Read ``partial_rotary_factor``, beside the rope's parameters or among them."""
    for key in ("rope_parameters", "rope_scaling"):
        stated = values.value(key)
        if isinstance(stated, Mapping) and stated.get("partial_rotary_factor") is not None:
            found = number(stated, "partial_rotary_factor", 1.0)
            break
    else:
        found = values.number("partial_rotary_factor", 1.0)
    return _part_of_head(found)


def even_rotary_factor(values: ConfigValues) -> float:
    """Read ``partial_rotary_factor`` of a family that has no meaning for an odd number of
    rotated features."""
    part = partial_rotary_factor(values)
    size = values.count("hidden_size") // values.count("num_attention_heads")
    if int(part * size) % 2:
        allowed = f"must be an even number of a head's {size} features"
        raise values.bad("partial_rotary_factor", part, allowed)
    return part


def _part_of_head(found: float) -> float:
    if not 0 < found <= 1:
        raise bad("partial_rotary_factor", found, "must be above 0 and at most 1")
    return found


def _rope(
    stated: Mapping[str, object], key: str, raw: Mapping[str, object], positions: int
) -> RopeConfig:
    """Read one rope; ``raw`` holds the keys that may also stand beside it."""
    rope_type = stated.get("rope_type", stated.get("type", "default"))
    # Phi 3's first release called it "su".
    rope_type = "longrope" if rope_type == "su" else rope_type
    if rope_type not in _ROPE_TYPES or any(isinstance(part, Mapping) for part in stated.values()):
        raise bad(f"{key}.rope_type", rope_type, f"supported are {', '.join(_ROPE_TYPES)}")
    theta = number({**raw, **present(stated)}, "rope_theta", DEFAULT_THETA)
    if theta <= 0:
        raise bad("rope_theta", theta, "must be above 0")
    if rope_type == "default":
        return RopeConfig(theta=theta, original_max_position_embeddings=positions)
    if rope_type == "proportional":
        kept, factor = (number(stated, key, 1.0) for key in ("partial_rotary_factor", "factor"))
        if not 0 < kept <= 1 or factor <= 0:
            allowed = "partial_rotary_factor is above 0 and at most 1, factor above 0"
            raise bad(key, dict(stated), allowed)
        return RopeConfig("proportional", theta, factor, positions, kept=kept)
    original = positions
    if rope_type in ("llama3", "yarn", "longrope"):
        # The other types are defined by max_position_embeddings, whatever else is written.
        found = {**raw, **present(stated)}.get("original_max_position_embeddings")
        name = "original_max_position_embeddings"
        original = int(number({name: found}, name, positions))
        if not 1 <= original <= MOST:
            raise bad(f"{key}.{name}", original, f"must be a whole number from 1 to {MOST}")
    if rope_type == "longrope":
        if original < 2:
            raise bad(f"{key}.original_max_position_embeddings", original, "must be at least 2")
        return _longrope(stated, key, theta, original, positions)
    required = ["factor"]
    if rope_type == "llama3":
        required += ["low_freq_factor", "high_freq_factor"]
    for name in required:
        if stated.get(name) is None:
            raise bad(f"{key}.{name}", None, f"rope type {rope_type!r} needs a number")
    given: dict[str, Any] = {
        name: number(stated, name, 0.0) for name in _NUMBERS if stated.get(name) is not None
    }
    for name, value in given.items():
        if value <= 0 and not (value == 0 and name.startswith("mscale")):
            raise bad(f"{key}.{name}", value, "must be above 0")
    truncate = stated.get("truncate", True)
    if truncate is not None and not isinstance(truncate, bool):
        raise bad(f"{key}.truncate", truncate, "must be true or false")
    rope = RopeConfig(
        rope_type=str(rope_type),
        theta=theta,
        original_max_position_embeddings=original,
        truncate=bool(truncate),
        **given,
    )
    if rope_type == "llama3" and rope.low_freq_factor > rope.high_freq_factor:
        low, high = rope.low_freq_factor, rope.high_freq_factor
        raise bad(f"{key}.low_freq_factor", low, f"must not be above high_freq_factor ({high})")
    if rope_type == "yarn" and theta <= 1:
        raise bad("rope_theta", theta, "must be above 1 for rope type 'yarn'")
    return rope


def _longrope(
    stated: Mapping[str, object], key: str, theta: float, original: int, positions: int
) -> RopeConfig:
    """Read a ``longrope``; without a factor its stretch is that of the context."""
    for name in ("short_mscale", "long_mscale"):
        if stated.get(name) is not None:
            raise bad(f"{key}.{name}", stated[name], "is not supported; leave it out")
    factors = []
    for name in ("short_factor", "long_factor"):
        found = stated.get(name)
        if not isinstance(found, (list, tuple)) or not found:
            raise bad(f"{key}.{name}", found, "must list a number above 0 for each pair of a head")
        read = tuple(number({name: each}, name, 0.0) for each in found)
        if min(read) <= 0:
            raise bad(f"{key}.{name}", min(read), "must be above 0")
        factors.append(read)
    given = present({name: stated.get(name) for name in ("factor", "attention_factor")})
    numbers: dict[str, Any] = {name: number(given, name, 0.0) for name in given}
    for name, value in numbers.items():
        if value <= 0:
            raise bad(f"{key}.{name}", value, "must be above 0")
    return RopeConfig(
        rope_type="longrope",
        theta=theta,
        original_max_position_embeddings=original,
        short_factors=factors[0],
        long_factors=factors[1],
        **{"factor": positions / original, **numbers},
    )


def _stretched(rope: RopeConfig, stated: Mapping[str, object], key: str, size: int) -> RopeConfig:
    """Stretch the theta of a ``dynamic`` rope once and for all if there is an ``alpha``.

    This is "NTK-aware" scaling: the theta is multiplied by ``alpha ** (D / (D - 2))``.
    """
    if rope.rope_type != "dynamic" or stated.get("alpha") is None:
        return rope
    alpha = number(stated, "alpha", 1.0)
    if alpha <= 0:
        raise bad(f"{key}.alpha", alpha, "must be above 0")
    if size < 4:
        raise bad("head_dim", size, "must be at least 4 for rope type 'dynamic'")
    theta = rope.theta * alpha ** (size / (size - 2))
    return RopeConfig(
        theta=theta, original_max_position_embeddings=rope.original_max_position_embeddings
    )


def _query_scaling(stated: Mapping[str, object], key: str, rope: RopeConfig) -> QueryScaling | None:
    """Read factors on the queries by position, if the file has them."""
    name = "llama_4_scaling_beta"
    beta = number(stated, name, 0.0)
    if beta < 0:
        raise bad(f"{key}.{name}", beta, "must not be below 0")
    return QueryScaling(beta, rope.original_max_position_embeddings) if beta else None
