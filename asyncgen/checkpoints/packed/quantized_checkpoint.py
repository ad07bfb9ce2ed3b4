"""Find the packed matrices of a checkpoint by its `quantization_config`.

No weight is read here: each matrix becomes a `StoredTensor` that is read by its scheme. Unknown
settings are refused by name.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.checkpoint import Checkpoint, Kept, StoredTensor, list_few
from asyncgen.checkpoints.packed import schemes
from asyncgen.checkpoints.packed.grouped_weight import packed_bytes
from asyncgen.checkpoints.packed.raw_tensors import read_raw
from asyncgen.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

METHODS: Final = ("compressed-tensors", "gptq", "awq", "bitsandbytes", "fp8", "fbgemm_fp8")
"""Supported values of ``quant_method``, besides MXFP4."""

_UNUSED: Final = (
    "input_scale",
    "input_zero_point",
    "output_scale",
    "k_scale",
    "v_scale",
    "q_scale",
)
"""Scales of activations, which are not needed here."""


def join_packed(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> Checkpoint:
    """Join the parts of each packed matrix to one tensor.

    Args:
        checkpoint: The stored tensors.
        settings: ``quantization_config``; its ``quant_method`` is one of `METHODS`.

    Raises:
        ModelLoadError: The scheme is unknown, or parts are missing.
    """
    method = settings["quant_method"]
    sees = {
        "compressed-tensors": _compressed,
        "gptq": _gptq,
        "awq": _awq,
        "bitsandbytes": _bitsandbytes,
        "fp8": _float8,
        "fbgemm_fp8": _float8,
    }[method]
    try:
        tensors = sees(checkpoint.tensors, settings)
    except KeyError as error:
        raise ModelLoadError(
            f"{checkpoint.folder} says that it is quantised ({method}), but {error.args[0]!r} is "
            "missing; download it again"
        ) from error
    except _Unknown as error:
        raise ModelLoadError(
            f"{checkpoint.folder} is quantised ({method}) in a way that is not supported: {error}; "
            "use the model that it was made of"
        ) from error
    left = {
        name: tensor for name, tensor in tensors.items() if name.rpartition(".")[2] not in _UNUSED
    }
    return replace(checkpoint, tensors=left)


class _Unknown(Exception):
    """A setting that is not supported."""


Tensors = dict[str, StoredTensor]


def _compressed(tensors: Mapping[str, StoredTensor], settings: Mapping[str, Any]) -> Tensors:
    form = settings.get("format", "dense")
    known = ("int-quantized", "pack-quantized", "naive-quantized", "float-quantized", "dense")
    groups = list((settings.get("config_groups") or {}).values())
    if len(groups) != 1 or form not in known:
        raise _Unknown(f"format {form!r} with {len(groups)} groups of settings")
    weights = groups[0].get("weights") or {}
    bits, kind = weights.get("num_bits"), weights.get("type", "int")
    strategy = weights.get("strategy")
    if strategy not in ("tensor", "channel", "group", "block"):
        raise _Unknown(f"strategy {strategy!r}")
    if kind == "float" and bits == 8:
        return _joined(tensors, "weight_scale", partial(schemes.float8, scale="weight_scale"))
    if kind != "int" or bits not in (4, 8) or strategy == "block":
        raise _Unknown(f"{bits} bits of type {kind!r} by {strategy}")
    size = weights.get("group_size") if strategy == "group" else None
    return _joined(
        tensors,
        "weight_scale",
        partial(schemes.compressed_integers, bits=bits, size=size),
        partial(_kept, bits=bits, size=size, scales="weight_scale", zeros="weight_zero_point"),
    )


def _gptq(tensors: Mapping[str, StoredTensor], settings: Mapping[str, Any]) -> Tensors:
    bits, size = settings.get("bits"), settings.get("group_size", -1)
    if bits not in (4, 8):
        raise _Unknown(f"{bits} bits")
    form = settings.get("checkpoint_format", "gptq")
    if form not in ("gptq", "gptq_v2"):
        raise _Unknown(f"format {form!r}")
    size = None if size == -1 else size
    read = partial(schemes.gptq, bits=bits, size=size, is_second=form == "gptq_v2")
    return _joined(tensors, "qweight", read, partial(_kept, bits=bits, size=size))


def _awq(tensors: Mapping[str, StoredTensor], settings: Mapping[str, Any]) -> Tensors:
    bits, version = settings.get("bits"), str(settings.get("version", "gemm")).lower()
    size = settings.get("group_size", 128)
    if bits != 4 or version != "gemm" or not settings.get("zero_point", True):
        raise _Unknown(f"{bits} bits, version {version!r}")
    size = None if size == -1 else size
    read = partial(schemes.awq, size=size)
    return _joined(tensors, "qweight", read, partial(_kept, bits=bits, size=size))


def _bitsandbytes(tensors: Mapping[str, StoredTensor], settings: Mapping[str, Any]) -> Tensors:
    if settings.get("load_in_8bit"):
        kept = {name: one for name, one in tensors.items() if not name.endswith(".weight_format")}
        size = partial(_kept, bits=8, size=None, scales="SCB")
        return _joined(kept, "SCB", schemes.bitsandbytes_eight, size)
    renamed: Tensors = {}
    for name, tensor in tensors.items():
        # `x.weight.quant_state.bitsandbytes__nf4` and its like
        stem, dot, part = name.partition(".weight.")
        renamed[f"{stem}.{part.split('.')[0]}" if dot else name] = tensor
    size = partial(_kept, bits=4, size=schemes.NF4_GROUP, scales="absmax")
    return _joined(renamed, "quant_state", schemes.bitsandbytes_four, size)


def _float8(tensors: Mapping[str, StoredTensor], settings: Mapping[str, Any]) -> Tensors:
    if settings.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise _Unknown(f"fmt {settings['fmt']!r}")
    inverse = any(name.endswith(".weight_scale_inv") for name in tensors)
    scale = "weight_scale_inv" if inverse else "weight_scale"
    return _joined(tensors, scale, partial(schemes.float8, scale=scale))


def _kept(
    shape: tuple[int, ...],
    parts: Tensors,
    *,
    bits: int,
    size: int | None,
    scales: str = "scales",
    zeros: str = "qzeros",
) -> Kept | None:
    """Return the size of a matrix that stays packed; ``None``: unknown."""
    if len(shape) != 2 or scales not in parts:
        return None
    # Those of bitsandbytes are made float32.
    scale = 2 if parts[scales].kind in ("F16", "BF16") and scales != "absmax" else 4
    has_zeros = zeros in parts
    try:
        taken = packed_bytes(*shape, size or shape[1], bits=bits, scale=scale, has_zeros=has_zeros)
    except (ValueError, ZeroDivisionError, TypeError):
        return None  # the error is raised when it is read
    return Kept(taken)


def _joined(
    tensors: Mapping[str, StoredTensor],
    marker: str,
    read: Callable[[Mapping[str, Any]], Any],
    keeps: Callable[[tuple[int, ...], Tensors], Kept | None] | None = None,
) -> Tensors:
    """Join the tensors beside each ``marker`` to one ``weight``; the bias stays."""
    stems = [name.removesuffix(f".{marker}") for name in tensors if name.endswith(f".{marker}")]
    if not stems:
        raise KeyError(f"*.{marker}")
    found, taken = dict(tensors), set(stems)
    parts: dict[str, Tensors] = {stem: {} for stem in stems}
    for name in tensors:
        stem, _, part = name.rpartition(".")
        if stem in taken and part != "bias" and part not in _UNUSED:
            parts[stem][part] = found.pop(name)
    for stem, own in parts.items():
        found[f"{stem}.weight"] = _stored(stem, own, read, keeps)
    return found


def _stored(
    stem: str,
    parts: Tensors,
    read: Callable[[Mapping[str, Any]], Any],
    keeps: Callable[[tuple[int, ...], Tensors], Kept | None] | None,
) -> StoredTensor:
    main = next(
        (parts[name] for name in ("weight", "weight_packed", "qweight") if name in parts), None
    )
    if main is None:
        raise KeyError(f"{stem}.weight")

    def made() -> Any:
        try:
            return read({name: read_raw(part) for name, part in parts.items()})
        except (ValueError, KeyError, IndexError, RuntimeError, TypeError) as error:
            names = list_few("its parts are", sorted(parts))
            raise ModelLoadError(
                f"{main.file}: `{stem}` cannot be unpacked: {error}; {names}"
            ) from error

    size = sum(part.num_bytes for part in parts.values())
    is_float, shape = main.kind.startswith("F8"), _shape(main, parts)
    return StoredTensor(
        main.file,
        "BF16",
        shape,
        main.offset,
        size,
        packed=None if is_float else made,
        unpacked=made if is_float else None,
        kept=keeps(shape, parts) if keeps is not None and not is_float else None,
    )


def _shape(main: StoredTensor, parts: Tensors) -> tuple[int, ...]:
    """Return the shape ``[out, in]`` of a matrix, from headers or small tensors."""
    if "quant_state" in parts:
        state = json.loads(bytes(read_raw(parts["quant_state"]).tolist()))
        return tuple(int(one) for one in state["shape"])
    if "weight_shape" in parts:
        return tuple(int(one) for one in read_raw(parts["weight_shape"]))
    if "scales" in parts:
        outputs = parts["scales"].shape[1]
        rows, columns = main.shape
        if columns == outputs:  # GPTQ: words along the inputs
            bits = 32 * parts["qzeros"].shape[1] // outputs
            return outputs, rows * 32 // bits
        return outputs, rows
    return main.shape
