"""Find the packed matrices of a checkpoint by its `quantization_config`.

No weight is read here: each matrix becomes a `StoredTensor` that is read by its scheme. Unknown
settings are refused by name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.checkpoint import Checkpoint, Kept, StoredTensor, list_few
from asyncgen.checkpoints.mxfp4 import METHOD as MXFP4
from asyncgen.checkpoints.mxfp4 import join_pairs
from asyncgen.checkpoints.packed.grouped_weight import packed_bytes
from asyncgen.checkpoints.packed.methods import LAYOUTS, check_mxfp4
from asyncgen.checkpoints.packed.raw_tensors import read_raw
from asyncgen.checkpoints.packed.stated_settings import Settings, UnknownSettingError
from asyncgen.errors import ModelLoadError, clip, shorten

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from asyncgen.checkpoints.packed.layouts import Layout, Scheme

QUANTISED: Final = "quantization_config"
"""Key of ``config.json``."""

METHODS: Final = (*LAYOUTS, MXFP4)
"""Supported values of ``quant_method``."""

_UNUSED: Final = frozenset(
    """
    activation_scale input_scale input_zero_point output_scale output_zero_point
    k_scale k_zero_point v_scale v_zero_point q_scale kv_scale
    """.split()
)
"""Scales of activations and of the KV cache, which are not quantised here."""

_BROKEN: Final = (
    *(ValueError, LookupError, ArithmeticError, RuntimeError, TypeError),
    UnknownSettingError,
)
"""Errors of parts that do not fit together."""

_LONGEST_METHOD: Final = 40
_LONGEST_NAME: Final = 200
_LONGEST_REASON: Final = 500
"""Most characters that errors show of a method, of a name, and of what is wrong."""


def quantisation_method(raw: Mapping[str, Any]) -> str | None:
    """Return the method of a ``quantization_config``; ``None``: the weights are floats.

    Args:
        raw: Content of ``config.json``.
    """
    stated = _stated(raw)
    if not stated:
        return None
    if not isinstance(stated, dict):
        return shorten(stated, _LONGEST_METHOD)
    named = stated.get("quant_method")
    if named is None and (stated.get("load_in_4bit") or stated.get("load_in_8bit")):
        return "bitsandbytes"  # early files, as the reference reads them
    if isinstance(named, str):
        return clip(named, _LONGEST_METHOD)
    return shorten(named, _LONGEST_METHOD)


def join_packed(checkpoint: Checkpoint, raw: Mapping[str, Any]) -> Checkpoint:
    """Join the parts of each packed matrix to one tensor.

    Args:
        checkpoint: The stored tensors.
        raw: Content of ``config.json``; its `quantisation_method` is one of `METHODS`.

    Raises:
        ModelLoadError: A setting is not supported, or parts are missing.
    """
    method = quantisation_method(raw)
    assert method is not None
    stated = checkpoint.folder / "config.json"
    try:
        settings = Settings(_stated(raw))
        if method == MXFP4:
            check_mxfp4(settings)
            return join_pairs(checkpoint)
        tensors = dict(checkpoint.tensors)
        if method == "bitsandbytes":
            tensors = _with_plain_names(tensors)
        found = _joined(tensors, LAYOUTS[method](settings, tensors))
    except KeyError as error:
        missing = shorten(error.args[0], _LONGEST_NAME)
        raise ModelLoadError(
            f"{stated} says that it is quantised ({method}), but {missing} is missing; download it "
            "again"
        ) from error
    except UnknownSettingError as error:
        raise ModelLoadError(
            f"{stated} says that it is quantised ({method}) in a way that is not supported: "
            f"{error}; use the model that it was made of"
        ) from error
    left = {name: each for name, each in found.items() if name.rpartition(".")[2] not in _UNUSED}
    return replace(checkpoint, tensors=left)


def without_spare_biases(checkpoint: Checkpoint, needed: Collection[str]) -> Checkpoint:
    """Leave out biases of zeros that the model does not have.

    AutoGPTQ stores a bias for every matrix.

    Args:
        checkpoint: The stored tensors.
        needed: Names of those that the model has.
    """
    spare = {
        name
        for name, tensor in checkpoint.tensors.items()
        if name.endswith(".bias")
        and name not in needed
        and (matrix := checkpoint.tensors.get(f"{name.removesuffix('bias')}weight")) is not None
        and matrix.packed is not None
        and tensor.shape == matrix.shape[:1]
        and not bool(read_raw(tensor).any())
    }
    left = {name: each for name, each in checkpoint.tensors.items() if name not in spare}
    return replace(checkpoint, tensors=left)


def _stated(raw: Mapping[str, Any]) -> Any:
    """Return the settings, which may stand in the text model's part of the file."""
    text = raw.get("text_config")
    return raw.get(QUANTISED) or (text.get(QUANTISED) if isinstance(text, dict) else None)


Tensors = dict[str, StoredTensor]


def _with_plain_names(tensors: Mapping[str, StoredTensor]) -> Tensors:
    """Shorten names such as ``x.weight.quant_state.bitsandbytes__nf4`` to ``x.quant_state``."""
    renamed: Tensors = {}
    for name, tensor in tensors.items():
        stem, dot, part = name.partition(".weight.")
        plain = f"{stem}.{part.split('.')[0]}" if dot else name
        if plain in renamed:
            shown = clip(plain, _LONGEST_NAME)
            raise ModelLoadError(f"{tensor.file}: the part `{shown}` is there twice")
        renamed[plain] = tensor
    return renamed


def _joined(tensors: Tensors, layout: Layout) -> Tensors:
    """Join the tensors beside each marker to one ``weight``; the bias stays."""
    end = f".{layout.marker}"
    stems = [name.removesuffix(end) for name in tensors if name.endswith(end)]
    if not stems:
        raise KeyError(f"*{end}")
    found, taken = dict(tensors), set(stems)
    parts: dict[str, Tensors] = {stem: {} for stem in stems}
    for name in tensors:
        stem, _, part = name.rpartition(".")
        if stem in taken and part != "bias" and part not in _UNUSED:
            parts[stem][part] = found.pop(name)
    schemes = {stem: layout.of(stem, own) for stem, own in parts.items()}
    for stem, own in parts.items():
        found[f"{stem}.weight"] = _stored(stem, own, schemes[stem])
    return found


def _stored(stem: str, parts: Tensors, scheme: Scheme) -> StoredTensor:
    _check_kinds(stem, parts, scheme)
    main = parts[next(iter(scheme.needed))]

    def refused(error: Exception) -> ModelLoadError:
        names = list_few("its parts are", sorted(parts))
        shown = f"`{clip(stem, _LONGEST_NAME)}` cannot be unpacked"
        reason = clip(str(error), _LONGEST_REASON)
        return ModelLoadError(f"{main.file}: {shown}: {reason}; {names}")

    def made() -> Any:
        try:
            return scheme.read({name: read_raw(part) for name, part in parts.items()})
        except _BROKEN as error:
            raise refused(error) from error

    try:
        shapes = scheme.shapes(parts)
        shapes.check(parts)
        kept = None if scheme.is_float else _kept(shapes.matrix, parts, scheme)
    except _BROKEN as error:
        raise refused(error) from error
    return StoredTensor(
        main.file,
        "BF16",
        shapes.matrix,
        main.offset,
        sum(part.num_bytes for part in parts.values()),
        packed=None if scheme.is_float else made,
        unpacked=made if scheme.is_float else None,
        kept=kept,
    )


def _check_kinds(stem: str, parts: Tensors, scheme: Scheme) -> None:
    """Refuse parts that are missing, not known, or of another dtype."""
    known = {**scheme.others, **scheme.needed}
    for name in scheme.needed:
        if name not in parts:
            raise KeyError(f"{stem}.{name}")
    for name, part in parts.items():
        shown = f"`{clip(f'{stem}.{name}', _LONGEST_NAME)}`"
        if name not in known:
            raise ModelLoadError(f"{part.file}: the part {shown} is not known")
        if part.kind not in known[name]:
            allowed = " or ".join(known[name])
            raise ModelLoadError(f"{part.file}: {shown} is {part.kind}, and should be {allowed}")


def _kept(shape: tuple[int, ...], parts: Tensors, scheme: Scheme) -> Kept:
    """Return the size of a matrix that stays packed.

    Raises:
        ValueError: No layout has groups of this size.
    """
    outputs, inputs = shape
    is_half = parts[scheme.scales].kind in ("F16", "BF16")
    is_half = is_half and scheme.scales not in ("absmax", "SCB")  # which are made float32
    return Kept(
        packed_bytes(
            outputs,
            inputs,
            scheme.size or inputs,
            bits=scheme.bits,
            scale=2 if is_half else 4,
            has_zeros=scheme.zeros in parts,
        )
    )
