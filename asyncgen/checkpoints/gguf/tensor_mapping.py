"""Map the tensors of a GGUF file to a model's parameters.

The rules are those of the family, with other names: llama.cpp stores queries and keys of some
architectures in the order for RoPE on neighbouring features, splits matrices of groups, and never
stores ``[in, out]``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from asyncgen.checkpoints.checkpoint import Checkpoint, StoredTensor
from asyncgen.checkpoints.gguf import mla
from asyncgen.checkpoints.gguf.config import architecture_of
from asyncgen.checkpoints.gguf.declaration import JOINED, NAMES, Architecture, Place
from asyncgen.checkpoints.gguf.embedding_defaults import LAYERS
from asyncgen.checkpoints.gguf.gated_delta import LEAVE, delta_rules, separate, turned_columns
from asyncgen.checkpoints.gguf.hybrid import numbers_by_layer
from asyncgen.checkpoints.gguf.read_tensors import kept_as, read_as, read_packed
from asyncgen.checkpoints.gguf.t5 import stack_names
from asyncgen.errors import UnsupportedModelError
from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.plans.delta_plan import DeltaPlan
from asyncgen.models.weight_rules import weight_rules

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.checkpoints.gguf.gguf_file import GgufModel, PackedTensor
    from asyncgen.families.config import ModelConfig
    from asyncgen.models.weight_map import WeightRule

_UNNEEDED = (
    *("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
    *LAYERS,
)
"""Tensors of RoPE scaling and of embeddings, which are read elsewhere."""

_STACKED = ("altup_proj", "altup_unembd_proj")
"""Tensors of several matrices, beside those of experts."""

_MOST_PARTS = 1024
"""Most matrices of one tensor, twice those of any model; a tensor with more stays whole."""
_MOST = 1 << 18
"""Most matrices of all tensors of a file."""

_OWN_KEYS = ("attn_k.", "attn_v.", "attn_k_norm.")
"""Tensors of keys and values; files have them also in layers that share those of others."""


def gguf_rules(model: GgufModel, config: ModelConfig) -> tuple[WeightRule, ...] | None:
    """Return the rules of all parameters for `gguf_checkpoint`; ``None``: those of the family.

    Args:
        model: The file.
        config: The network of its metadata.
    """
    if config.is_encoder_decoder:
        return None
    architecture, family = architecture_of(model), FAMILIES[config.model_type]
    table = {**NAMES, **architecture.names}
    absent = [key for key in config.names if key not in table]
    if absent:
        raise UnsupportedModelError(
            f"{model.file}: {config.model_type} has {', '.join(absent)}, which is not read of GGUF"
        )
    names = {key: table[key] for key in config.names}
    for key, joined in JOINED.items():
        first = (names.get(key, "").split() or [""])[0].removesuffix(".*")
        if first and not any(
            f"blk.{layer}.{first}.weight" in model.tensors
            for layer in range(config.num_hidden_layers)
        ):
            names[key] = joined
    plans = tuple(
        replace(
            plan,
            is_interleaved=architecture.turns_neighbours,
            is_backward=False,
            qkv_groups=1,
            qkv_order="qkv",
            experts=plan.experts
            and replace(
                plan.experts, takes_turns=False, is_flat=False, has_row_of_corrections=False
            ),
        )
        for plan in config.layer_plans
    )
    seen = separate(replace(config, names=names, layer_plans=plans), model)
    rules = weight_rules(seen, replace(family, is_transposed=False))
    return delta_rules(rules, model, seen, takes_turns=architecture.values_take_turns)


def gguf_checkpoint(model: GgufModel, config: ModelConfig) -> Checkpoint:
    """Return the tensors of a file; a tensor of several experts is split.

    Args:
        model: The file.
        config: The network of its metadata.
    """
    architecture = architecture_of(model)
    tensors: dict[str, StoredTensor] = {}
    if config.is_encoder_decoder:
        for name, theirs in stack_names(model).items():
            tensors[theirs] = _stored(model.tensors[name], 0.0)
        return Checkpoint(model.file, tensors)
    parts = 0
    declared = model.own.whole("block_count") or 0  # with layers that guess tokens ahead
    for name, tensor in model.tensors.items():
        if _layer(name) >= max(declared, config.num_hidden_layers):
            tensors[name] = _stored(tensor, 0.0)  # of no layer that there is
            continue
        if name in _UNNEEDED or _layer(name) >= config.num_hidden_layers:
            continue
        if _layer(name) >= 0 and config.keys_of(_layer(name)) != _layer(name):
            if name.partition(".")[2].partition(".")[2].startswith(_OWN_KEYS):
                continue
        stem, _, kind = name.rpartition(".")
        less = 1.0 if architecture.plus_one and name.endswith("norm.weight") else 0.0
        layer, _, rest = name.removeprefix("blk.").partition(".")
        mixer = config.layer_plans[_layer(name)].mixer if _layer(name) >= 0 else None
        place = architecture.places.get(rest) if mixer is not None else None
        keys = model.tensors.get(f"blk.{layer}.{mla.KEYS}")
        both = mla.joined(keys, tensor) if rest == mla.VALUES and keys else None
        if both is not None:
            tensors[f"blk.{layer}.{mla.BOTH}"] = both
        elif rest == mla.KEYS:
            continue
        elif place is not None:
            found = _placed(tensor, place)
            if architecture.values_take_turns and rest == LEAVE and isinstance(mixer, DeltaPlan):
                found = turned_columns(found, tensor, mixer)
            tensors[f"blk.{layer}.{place.name}"] = found
        elif (
            (stem.endswith("_exps") or stem in _STACKED)
            and len(tensor.shape) > 1
            and tensor.shape[0] <= min(_MOST_PARTS, _MOST - parts)
        ):
            parts += tensor.shape[0]
            for expert in range(tensor.shape[0]):
                tensors[f"{stem}.{expert}.{kind}"] = _stored(tensor, less, expert)
        else:
            tensors[name] = _stored(tensor, less)
    return Checkpoint(model.file, {**tensors, **_numbers(model, architecture)})


def _numbers(model: GgufModel, architecture: Architecture) -> dict[str, StoredTensor]:
    """Make tensors from metadata with one number for each layer or for all."""
    found: dict[str, StoredTensor] = {}
    for key, (name, shape) in architecture.numbers.items():
        for layer, number in enumerate(numbers_by_layer(model, key)):
            made = partial(_filled, shape, number)
            stored = StoredTensor(model.file, "F32", shape, 0, 4, made=made)
            found[f"blk.{layer}.{name}"] = stored
    return found


def _filled(shape: tuple[int, ...], number: float, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, number, dtype=torch.float32, device="cpu").to(dtype)


def _placed(tensor: PackedTensor, place: Place) -> StoredTensor:
    """Return a tensor in the form of a checkpoint."""
    shape = tensor.shape
    if place.form in ("flat", "decay"):
        shape = tuple(side for side in shape if side > 1) or (1,)
    if place.form == "flat":
        shape = (math.prod(shape),)
    if place.form == "window":
        shape = (math.prod(shape[:-1]), 1, shape[-1])
    if place.form == "decays":
        shape = (1, 1, math.prod(shape), 1)
    found = _stored(replace(tensor, shape=shape), 0.0)
    if place.form not in ("decay", "decays"):
        return found
    return replace(found, made=partial(_logarithms, replace(tensor, shape=shape)))


def _logarithms(tensor: PackedTensor, dtype: torch.dtype) -> Tensor:
    """Return the logarithms of rates of decay, which are below 0."""
    return read_as(tensor, torch.float32).neg_().log_().to(dtype)


def _layer(name: str) -> int:
    """Return the number of a tensor's layer; -1: it has none."""
    first, _, rest = name.partition(".")
    number = rest.partition(".")[0]
    is_layer = first == "blk" and number.isascii() and number.isdigit() and len(number) < 9
    return int(number) if is_layer else -1


def _stored(tensor: PackedTensor, less: float, expert: int | None = None) -> StoredTensor:
    """Return a tensor, or the part of one expert."""
    shape, size, offset = tensor.shape, tensor.num_bytes, tensor.offset
    if expert is not None:
        size //= shape[0]
        offset, shape = offset + expert * size, shape[1:]
    plain = tensor.kind.plain
    if plain is not None and not less:
        return StoredTensor(tensor.file, plain, shape, offset, size)
    part = replace(tensor, shape=shape, offset=offset)
    found = StoredTensor(tensor.file, plain or "F32", shape, offset, size)
    if plain is None and len(shape) == 2 and not less:
        return replace(found, packed=partial(read_packed, part), kept=kept_as(part))
    return replace(found, made=partial(read_as, part, less=less))
