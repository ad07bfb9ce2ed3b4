"""Reorder the rows of layers with the gated delta rule in GGUF files.

In checkpoints the value heads of one key head are neighbours. `qwen35` files have the first value
head of each key head, then the second of each. `qwen3next` files have the order of checkpoints, and
rates and decays in one matrix, by key head; early ones have all other parts in one matrix, too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from asyncgen.checkpoints.gguf.read_tensors import read_as, read_packed
from asyncgen.families.plans.delta_plan import DeltaPlan
from asyncgen.runtime.transfer import host_ints, host_range

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from asyncgen.checkpoints.checkpoint import StoredTensor
    from asyncgen.checkpoints.gguf.gguf_file import GgufModel, PackedTensor
    from asyncgen.families.config import ModelConfig
    from asyncgen.models.kernels.packed_weight import PackedWeight
    from asyncgen.models.weight_map import WeightRule

LEAVE = "ssm_out.weight"
"""Name of the output matrix of a mixer."""

_JOINED = "blk.{}.ssm_in.weight"
_RATES = "in_proj_ba"


def separate(config: ModelConfig, model: GgufModel) -> ModelConfig:
    """Return the network with a separate matrix for each part of a mixer, as in the file."""
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
    """Return the rules of a network from `separate`, for the tensors of a file.

    Args:
        rules: Rules of checkpoints.
        model: The file.
        config: The network.
        takes_turns: Value heads are ordered by their index within a key head.
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
    """Return the position in the file of each of our value heads."""
    each = plan.heads // plan.key_heads
    return tuple(head % each * plan.key_heads + head // each for head in range(plan.heads))


@lru_cache(maxsize=8)
def _rows(plan: DeltaPlan, takes_turns: bool, is_joined: bool) -> tuple[int, ...]:
    """Return the row of the file's concatenated matrices for each of our rows.

    Args:
        plan: The mixer.
        takes_turns: Value heads are ordered by their index within a key head.
        is_joined: Rates and decays are in one matrix, by key head.
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
    """Return the output matrix of a mixer, with its columns in our order of heads.

    Args:
        found: Its location.
        tensor: The tensor in the file.
        plan: The mixer.
    """
    if plan.heads == plan.key_heads or len(tensor.shape) != 2 or tensor.shape[1] != plan.channels:
        return found
    heads = host_ints(_turns(plan))
    columns = (heads[:, None] * plan.values + host_range(plan.values)).view(-1)
    if found.packed is not None:
        return replace(found, packed=partial(_packed, tensor, columns.argsort().int()))
    return replace(found, made=partial(_made, tensor, columns))


def _packed(tensor: PackedTensor, order: Tensor) -> PackedWeight:
    return replace(read_packed(tensor), order=order)


def _made(tensor: PackedTensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
    return read_as(tensor, dtype)[:, columns]
