"""Decide which parameters become packed weights while a model is loaded.

Knows no architecture: a module that may take packed weights has ``is_packable``, and ``packs`` is
true if a kernel of this machine multiplies by them. Without such a kernel, the weights are unpacked
to the same numbers.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final

import torch

from asyncgen.checkpoints.checkpoint import Kept
from asyncgen.models.kernels.packed_weight import PackedWeight, join
from asyncgen.runtime.transfer import host_ints

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from asyncgen.checkpoints.checkpoint import StoredTensor
    from asyncgen.checkpoints.packed.packing_request import PackingRequest
    from asyncgen.checkpoints.packed.quantise import Codes
    from asyncgen.models.weight_map import WeightRule

_log = logging.getLogger("asyncgen.models")

HEAD: Final = "lm_head.weight"

WIDE: Final = ("embed_tokens.weight", HEAD)
"""Parameters that take 8 bits if others take 4."""

_BITS: Final = {"int8": 8.5, "int4": 4.75, "nf4": 5.0, "fp4": 4.5}
"""Bits of a number, including scales and zero points."""


def packing_of(module: nn.Module, rule: WeightRule, asked: PackingRequest | None) -> Codes | None:
    """Return the packing of a parameter during loading; ``None``: it is not packed.

    Args:
        module: Module of the parameter.
        rule: Rule of the parameter.
        asked: The request.
    """
    if asked is None or not _takes(module, rule):
        return None
    if asked.is_reference:
        return asked.codes if _asked_sources(module, rule, asked) == len(rule.sources) else None
    if rule.target in WIDE:
        return "int8"
    return None if _is_table(module) else asked.codes


def rounded_rows(
    module: nn.Module, rule: WeightRule, asked: PackingRequest | None
) -> Tensor | None:
    """Return the rows of a parameter that are rounded as if packed, because others are not packed.

    Args:
        module: Module of the parameter.
        rule: Rule of the parameter.
        asked: The request.

    Returns:
        ``[rows]`` bool; ``None``: all of them are packed, or none.
    """
    if asked is None or not asked.is_reference or not _takes(module, rule):
        return None
    if not 0 < _asked_sources(module, rule, asked) < len(rule.sources):
        return None
    flags = [not asked.skips(source) for source in rule.sources]
    counts = [shape[1 if rule.transposed else 0] for shape in rule.shapes]
    rows = torch.tensor(flags, dtype=torch.bool, device="cpu").repeat_interleave(host_ints(counts))
    return rows if rule.order is None else rows[host_ints(rule.order)]


def _asked_sources(module: nn.Module, rule: WeightRule, asked: PackingRequest) -> int:
    """Count the sources that the reference would pack: linear layers, which are not skipped."""
    is_kept_head = asked.skipped is None and rule.target == HEAD
    if _is_table(module) or is_kept_head:
        return 0
    return sum(not asked.skips(source) for source in rule.sources)


def _is_table(module: nn.Module) -> bool:
    return not hasattr(module, "in_features")


def is_packed(sources: Sequence[StoredTensor]) -> bool:
    """Tell whether a parameter's sources are all packed in their file, and can stay packed."""
    return all(source.packed is not None for source in sources)


def is_made(source: StoredTensor) -> bool:
    """Tell whether a tensor is stored as the parts of a packing scheme."""
    return source.packed is not None or source.unpacked is not None


def stays_packed(module: Any, rule: WeightRule, sources: Sequence[StoredTensor]) -> bool:
    """Tell whether a parameter stays packed as in its file."""
    return is_packed(sources) and _takes(module, rule) and bool(module.packs)


def ordered(parts: Sequence[PackedWeight], order: Sequence[int] | None) -> list[PackedWeight]:
    """Concatenate parts, their rows in the order of a `WeightRule`."""
    if order is None:
        return list(parts)
    joined = join(parts)
    index = host_ints(order)
    if len(joined) == 1:
        return [joined[0].rows(index)]
    starts = [0]
    for part in joined:
        starts.append(starts[-1] + part.outputs)
    found = torch.bucketize(index, host_ints(starts[1:]), right=True)
    pieces: list[PackedWeight] = []
    begin = 0
    for end in range(1, len(index) + 1):  # runs of rows of one part
        if end < len(index) and found[end] == found[begin]:
            continue
        number = int(found[begin])
        pieces.append(joined[number].rows(index[begin:end] - starts[number]))
        begin = end
    return join(pieces)


def packed_size(
    module: Any,
    rule: WeightRule,
    packings: Mapping[str, Codes | None],
    stored: Mapping[str, StoredTensor],
) -> int | None:
    """Return the bytes of a parameter that stays packed; ``None``: it does not.

    Args:
        module: Module of the parameter.
        rule: Rule of the parameter.
        packings: Packing of each parameter during loading.
        stored: The stored tensors.
    """
    packing, sources = packings[rule.target], [stored[source] for source in rule.sources]
    if stays_packed(module, rule, sources):
        kept = [source.kept or Kept(source.num_bytes) for source in sources]
        if module.needs_alike and any(each.layout != kept[0].layout for each in kept):
            return None  # they are unpacked
        return sum(each.num_bytes for each in kept)
    if packing is not None and module.packs:
        return int(sum(map(math.prod, rule.shapes)) * _BITS[packing] / 8)
    return None


def log_unpacked(
    packings: Mapping[str, Codes | None],
    stored: Mapping[str, StoredTensor],
    dtype: torch.dtype,
    device: torch.device | str,
) -> None:
    """Warn, if there are packed weights, that they become floats of a dtype."""
    if any(packings.values()) or any(tensor.packed is not None for tensor in stored.values()):
        name = str(dtype).removeprefix("torch.")
        _log.warning(
            "no kernel here multiplies packed weights by rows in %s on %s: they are unpacked, and "
            "take the memory of %s",
            name,
            device,
            name,
        )


def _takes(module: nn.Module, rule: WeightRule) -> bool:
    is_matrix = rule.target.endswith(".weight") and all(len(shape) == 2 for shape in rule.shapes)
    is_packable = getattr(module, "is_packable", False)
    return is_matrix and rule.matrices == 1 and bool(is_packable)
