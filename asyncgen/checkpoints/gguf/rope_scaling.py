"""Translate the RoPE scaling of metadata and tensors to that of a ``config.json``.

llama.cpp stores the divisors of frequencies that Llama 3's rule computes, and not the rule. The
rule is recovered if its usual numbers give the same divisors; otherwise the divisors are kept.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.gguf.gguf_file import as_written
from asyncgen.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from asyncgen.checkpoints.gguf.gguf_file import GgufModel

_MOST: Final = 4096
"""Most pairs of a head."""
_PAIR: Final = ("rope_factors_long", "rope_factors_short")
"""Tensors that exist only together, without ``.weight``."""
_ORIGINAL: Final = 8192
"""Original context length of all models with Llama 3's rule."""


def rope_scaling(
    model: GgufModel, context: int, theta: float, read: Callable[[str], list[float]]
) -> Mapping[str, Any] | None:
    """Return the value of ``rope_scaling``; ``None``: no scaling.

    Args:
        model: The file.
        context: Its context length.
        theta: Base of the wavelengths.
        read: Function that reads a tensor of one side by its name.

    Raises:
        ModelLoadError: A key is of the wrong type, a type of scaling is unknown, or a tensor of it
            is missing or has invalid divisors.
    """
    own, key = model.own, "rope.scaling."
    is_number = isinstance(theta, int | float) and not isinstance(theta, bool)
    if not is_number or not 0 < theta < math.inf:
        raise own.bad("rope.freq_base", "must be a finite number above 0")

    def divisors(name: str) -> list[float]:
        found = read(name)
        if not all(0 < one < math.inf for one in found):
            raise ModelLoadError(f"{model.file}: tensor {name} must hold finite numbers above 0")
        return found

    original = own.whole(f"{key}original_context_length")
    for name in ("rope_freqs", *_PAIR):
        tensor = model.tensors.get(f"{name}.weight")
        if tensor is not None and (len(tensor.shape) > 1 or tensor.shape[0] > _MOST):
            raise ModelLoadError(f"{model.file}: tensor {name}.weight is no list of divisors")
        if name in _PAIR and tensor is None and any(f"{n}.weight" in model.tensors for n in _PAIR):
            raise ModelLoadError(f"{model.file} has no tensor {name}.weight beside the other one")
    if "rope_factors_long.weight" in model.tensors:
        found = {
            "rope_type": "longrope",
            "long_factor": divisors("rope_factors_long.weight"),
            "short_factor": divisors("rope_factors_short.weight"),
            "original_max_position_embeddings": original or context,
        }
        attention = own.number(f"{key}attn_factor")
        return {**found, "attention_factor": attention} if attention else found
    if "rope_freqs.weight" in model.tensors:
        return _from_divisors(divisors("rope_freqs.weight"), theta, context)
    kind = own.text(f"{key}type") or "none"
    factor = own.number(f"{key}factor") or own.number("rope.scale_linear")
    if kind == "none" or not factor:
        return {"rope_type": "linear", "factor": factor} if factor and kind != "none" else None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise own.bad(f"{key}type", "supported are none, linear, yarn and longrope")
    numbers = {
        "beta_fast": f"{key}yarn_beta_fast",
        "beta_slow": f"{key}yarn_beta_slow",
        "attention_factor": f"{key}attn_factor",
        "mscale": f"{key}yarn_log_multiplier",
        "mscale_all_dim": f"{key}yarn_log_multiplier",
        "llama_4_scaling_beta": "attention.temperature_scale",
    }
    given = {name: own.number(place) for name, place in numbers.items()}
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original or context,
        **{name: as_written(number) for name, number in given.items() if number},
    }


def _from_divisors(divisors: Sequence[float], theta: float, context: int) -> Mapping[str, Any]:
    """Return Llama 3's rule if it gives these divisors, otherwise the divisors."""
    factor = round(max(divisors), 4)
    if factor >= 1:
        rule = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0}
        rule |= {"high_freq_factor": 4.0, "original_max_position_embeddings": _ORIGINAL}
        made = _divisors(len(divisors), theta, factor)
        pairs = zip(made, divisors, strict=True)
        if all(math.isclose(ours, theirs, rel_tol=1e-5) for ours, theirs in pairs):
            return rule
    return {
        "rope_type": "longrope",
        "long_factor": list(divisors),
        "short_factor": list(divisors),
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }


def _divisors(pairs: int, theta: float, factor: float) -> list[float]:
    """Compute the divisors of Llama 3's rule with its usual numbers."""
    made = []
    for pair in range(pairs):
        wavelength = 2 * math.pi * theta ** (pair / pairs)
        share = (_ORIGINAL / wavelength - 1) / 3
        share = min(max(share, 0.0), 1.0)
        made.append(1 / ((1 - share) / factor + share))
    return made
