"""Layers with the gated delta rule in GGUF files: rows of heads are put where ours have them.

Values' heads of one head of keys lie next to each other in checkpoints. `qwen35` files have the
first of each head of keys, then the second of each; `qwen3next` files have them as checkpoints do,
and rates and decays in one matrix, by head of keys. Early ones have all else in one matrix, too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import torch

from asyncgen.checkpoints.gguf.read_tensors import read_as, read_packed
from asyncgen.families.plans.delta_plan import DeltaPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.checkpoints.checkpoint import StoredTensor
    from asyncgen.checkpoints.gguf.gguf_file import GgufModel, PackedTensor
    from asyncgen.families.config import ModelConfig
    from asyncgen.models.kernels.packed_weight import PackedWeight
    from asyncgen.models.weight_map import WeightRule

LEAVE = "ssm_out.weight"
"""What a file calls the matrix behind a mixer."""

_JOINED = "blk.{}.ssm_in.weight"
_RATES = "in_proj_ba"


def separate(config: ModelConfig, model: GgufModel) -> ModelConfig:
    """The network whose mixers have a matrix for each part, where files have them so."""
    plans = tuple(
        replace(plan, mixer=replace(plan.mixer, storing="parts"))
        if isinstance(plan.mixer, DeltaPlan)
        and plan.mixer.storing != "apart"
        and _JOINED.format(index) not in model.tensors
        else plan
        for index, plan in enumerate(config.layer_plans)
    )
    return replace(config, layer_plans=plans)


def delta_rules(
    rules: Sequence[WeightRule], model: GgufModel, config: ModelConfig, *, takes_turns: bool
) -> tuple[WeightRule, ...]:
    """The rules of a network that `separate` gave, for the tensors of a file.

    Args:
        rules: Those of checkpoints.
        model: The file.
        config: The network.
        takes_turns: Whether values' heads lie by their place beside a head of keys.
    """
    return tuple(_moved(rule, model, config, takes_turns) for rule in rules)


def _moved(
    rule: WeightRule, model: GgufModel, config: ModelConfig, takes_turns: bool
) -> WeightRule:
    first, _, rest = rule.target.removeprefix("layers.").partition(".mixer.")
    plan = config.layer_plans[int(first)].mixer if rest else None
    if not isinstance(plan, DeltaPlan) or plan.storing != "parts":
        return rule
    part = rest.removesuffix(".weight")
    if part == "enter" and f"blk.{first}.ssm_ba.weight" in model.tensors:
        qkv, rates, _, gates = rule.sources
        both = rates.replace("in_proj_b", _RATES)
        width, count, _, last = rule.shapes
        shapes = (width, (2 * count[0], *count[1:]), last)
        return replace(
            rule, sources=(qkv, both, gates), shapes=shapes, order=_rows(plan, False, True)
        )
    if not takes_turns or plan.heads == plan.key_heads:
        return rule
    if part == "enter":
        return replace(rule, order=_rows(plan, True, False))
    if part == "window":
        return replace(rule, order=_rows(plan, True, False)[: plan.convolved])
    return replace(rule, order=_turns(plan)) if part in ("decay", "steps_bias") else rule


@lru_cache(maxsize=8)
def _turns(plan: DeltaPlan) -> tuple[int, ...]:
    """Where a file has each of our heads of values, which take turns there."""
    each = plan.heads // plan.key_heads
    return tuple(head % each * plan.key_heads + head // each for head in range(plan.heads))


@lru_cache(maxsize=8)
def _rows(plan: DeltaPlan, takes_turns: bool, is_joined: bool) -> tuple[int, ...]:
    """Which row of a file's matrices, one below the other, each of ours is.

    Args:
        plan: The mixer.
        takes_turns: Whether values' heads do.
        is_joined: Whether rates and decays are in one matrix, by head of keys.
    """
    heads = _turns(plan) if takes_turns else tuple(range(plan.heads))
    shared, width, count = plan.convolved - plan.channels, plan.convolved, plan.heads
    each = count // plan.key_heads
    if is_joined:
        rates = [width + head // each * 2 * each + head % each for head in range(count)]
        decays = [row + each for row in rates]
    else:
        rates = [width + head for head in heads]
        decays = [row + count for row in rates]

    def values(start: int) -> list[int]:
        return [start + head * plan.values + row for head in heads for row in range(plan.values)]

    return (*range(shared), *values(shared), *rates, *decays, *values(width + 2 * count))


def turned_columns(found: StoredTensor, tensor: PackedTensor, plan: DeltaPlan) -> StoredTensor:
    """The matrix behind a mixer, whose inputs lie in a file as its heads do.

    Args:
        found: Where it lies.
        tensor: The same, as the file says it.
        plan: The mixer.
    """
    if plan.heads == plan.key_heads or len(tensor.shape) != 2 or tensor.shape[1] != plan.channels:
        return found
    heads = torch.tensor(_turns(plan))
    columns = (heads[:, None] * plan.values + torch.arange(plan.values)).view(-1)
    if found.packed is not None:
        return replace(found, packed=partial(_packed, tensor, columns.argsort().int()))
    return replace(found, made=partial(_made, tensor, columns))


def _packed(tensor: PackedTensor, order: Tensor) -> PackedWeight:
    return replace(read_packed(tensor), order=order)


def _made(tensor: PackedTensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
    return read_as(tensor, dtype)[:, columns]
