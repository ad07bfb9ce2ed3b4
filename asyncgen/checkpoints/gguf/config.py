"""Translate the metadata of a GGUF file to the content of a ``config.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.gguf.architectures import ARCHITECTURES
from asyncgen.checkpoints.gguf.declaration import COMMON, Architecture, layers_of
from asyncgen.checkpoints.gguf.file_choice import SUFFIX
from asyncgen.checkpoints.gguf.gguf_file import GgufModel, as_written
from asyncgen.checkpoints.gguf.header_reader import Numbers
from asyncgen.checkpoints.gguf.read_tensors import read_numbers
from asyncgen.checkpoints.gguf.rope_scaling import rope_scaling
from asyncgen.errors import ModelLoadError, UnsupportedModelError, shorten
from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.plans.rope_config import part_of_head

if TYPE_CHECKING:
    from collections.abc import Mapping

_DTYPES: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_TOKENS: Final = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id"}


def architecture_of(model: GgufModel) -> Architecture:
    """Return the declaration of a file's architecture.

    Args:
        model: The file.

    Raises:
        UnsupportedModelError: It is not supported.
    """
    name = model.metadata.text("general.architecture")
    if name is None or name not in ARCHITECTURES:
        stated = "has no `general.architecture`" if name is None else f"is a {shorten(name)}"
        listed = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModelError(f"{model.file} {stated}: {SUFFIX} files are read of {listed}")
    return ARCHITECTURES[name]


def config_of(model: GgufModel) -> dict[str, Any]:
    """Return the content of the model's ``config.json``, in the spelling of its family.

    Args:
        model: The file.

    Raises:
        UnsupportedModelError: Its architecture is not supported.
        ModelLoadError: A key is missing, of the wrong kind, or not supported.
    """
    metadata, architecture = model.metadata, architecture_of(model)
    table = model.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise ModelLoadError(f"{model.file} has no table of embeddings, `token_embd.weight`")
    found: dict[str, Any] = {
        "model_type": architecture.model_type,
        "vocab_size": table.shape[0],
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "dtype": _dtype(model),
        **architecture.fixed,
    }
    for theirs, ours in {**COMMON, **architecture.keys}.items():
        if not ours:
            continue
        value = _plain(model, theirs, differs=theirs in architecture.by_layer)
        if value is not None:
            found[ours] = value
    if "sliding_window" in architecture.keys.values():
        found["sliding_window"] = found.get("sliding_window") or None  # no family default
    _check(model, architecture)
    found["num_hidden_layers"] = layers_of(model)
    heads, width = found.get("num_attention_heads"), found.get("hidden_size")
    if "head_dim" not in found and isinstance(heads, int) and isinstance(width, int) and heads:
        found["head_dim"] = width // heads
    for ours, name in architecture.flags.items():
        found[ours] = _has(model, name)
    if architecture.has_parts:
        found |= _turned_part(model, found)
    kinds = _layer_types(model)
    if kinds is not None:
        found["layer_types"] = kinds
    theta, context = found.get("rope_theta", 10_000.0), found.get("max_position_embeddings", 2048)
    scaling = rope_scaling(model, context, theta, lambda name: read_numbers(model.tensors[name]))
    if scaling is not None:
        found["rope_scaling"] = {**scaling, **architecture.rope}
        if architecture.stretched is not None:
            found["rope_scaling"] = architecture.stretched(model, found["rope_scaling"])
    if architecture.more is not None:
        found |= architecture.more(model)
    for ours, theirs in _TOKENS.items():
        found[theirs] = metadata.whole(f"tokenizer.ggml.{ours}_token_id")
    return _spelled(found)


def _check(model: GgufModel, architecture: Architecture) -> None:
    """Refuse settings that the family would ignore."""
    own, window = model.own, "attention.sliding_window"
    if architecture.needs_window and not own.whole(window):
        pattern = own.get(f"{window}_pattern")
        if not isinstance(pattern, Numbers) or any(pattern.read()):
            raise own.bad(window, "must be above 0, as layers slide")
    gate = "expert_gating_func"
    if architecture.gate and own.whole(gate) not in (None, 0, architecture.gate):
        raise own.bad(gate, f"supported is {architecture.gate}")


def _has(model: GgufModel, name: str) -> bool:
    """Tell whether a file has a tensor; a ``*`` stands for any layer."""
    prefix, is_any, rest = name.partition("*")
    if not is_any:
        return name in model.tensors
    return any(one.startswith(prefix) and one.endswith(rest) for one in model.tensors)


def _spelled(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration in the spelling of the family."""
    family = FAMILIES[found["model_type"]]
    return {
        family.spellings.get(key, key) if "." not in family.spellings.get(key, key) else key: value
        for key, value in found.items()
        if key in family.spellings or key not in family.unread
    }


def _plain(model: GgufModel, key: str, *, differs: bool) -> Any:
    """Return a number, or the common number of all layers that have one."""
    value = model.own.get(key)
    if isinstance(value, Numbers):
        several = set(value.read()) - ({0} if differs else set())
        if len(several) != 1:
            raise model.own.bad(key, "must be the same for all layers")
        return several.pop()
    if isinstance(value, float):
        return as_written(value)
    return value


def _turned_part(model: GgufModel, found: Mapping[str, Any]) -> dict[str, Any]:
    turned = model.own.whole("rope.dimension_count")
    size = found.get("head_dim")
    if not turned or not size:
        return {}
    if not isinstance(size, int) or size < turned or turned % 2:
        allowed = f"must be even; heads are of size {size}"
        raise model.own.bad("rope.dimension_count", allowed)
    return {"partial_rotary_factor": part_of_head(turned, size)}


def _layer_types(model: GgufModel) -> list[str] | None:
    """Return the types of layers, if the file lists the sliding ones."""
    value = model.own.get("attention.sliding_window_pattern")
    if not isinstance(value, Numbers) or value.format != "?":
        return None
    return ["sliding_attention" if slides else "full_attention" for slides in value.read()]


def _dtype(model: GgufModel) -> str:
    """Return the dtype of the weights; bfloat16 for packed ones."""
    largest = max(model.tensors.values(), key=lambda tensor: tensor.num_bytes)
    return _DTYPES.get(largest.kind.name, "bfloat16")
