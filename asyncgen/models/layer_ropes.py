"""List the ropes of a model, and find the rope of each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncgen.families.config import ModelConfig, RopeConfig


def ropes_of(config: ModelConfig) -> list[tuple[RopeConfig, int]]:
    """List the distinct ropes that rotate or scale at all, each with the size of heads."""
    ropes = dict.fromkeys(_rope_at(config, index) for index in range(config.num_hidden_layers))
    return [each for each in ropes if not _is_idle(each[0])]


def rope_of(config: ModelConfig, index: int) -> int | None:
    """Return the number of a layer's rope; ``None``: none."""
    each = _rope_at(config, index)
    return None if _is_idle(each[0]) else ropes_of(config).index(each)


def _rope_at(config: ModelConfig, index: int) -> tuple[RopeConfig, int]:
    """Return a layer's rope, and the size of its heads."""
    varied = config.layer_plans[index].varied
    rope = config.ropes[index] if config.ropes else config.rope
    return rope, config.head_dim if varied is None else varied.head_dim


def _is_idle(rope: RopeConfig) -> bool:
    """Return whether a rope neither rotates nor scales."""
    return rope.rope_type == "none" and rope.query_scaling is None
