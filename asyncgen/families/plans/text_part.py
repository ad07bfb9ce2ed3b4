"""Find the text model of a checkpoint that also sees or hears, and load it as if it stood alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

AROUND_TEXT = (
    "aria",
    "aya_vision",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "llama4",
    "llava",
    "llava_next",
    "mistral3",
    "qwen3_5",
    "qwen3_5_moe",
)
"""Model types around a text model which, given text alone, compute the same as that model."""

_OWN = {
    name: f"{name}_text"
    for name in AROUND_TEXT
    if name not in ("aya_vision", "llava", "llava_next", "mistral3")
}
"""Type of the text model if the file does not say it; else it is Mistral's."""

_BESIDE = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
"""Keys that count if they stand outside of the text model's."""


def text_config(raw: Mapping[str, object]) -> Mapping[str, object] | None:
    """Return the part of a ``config.json`` that describes the text model; ``None``: there is no
    other.

    Args:
        raw: The parsed file.
    """
    text = raw.get("text_config")
    if raw.get("model_type") not in AROUND_TEXT or not isinstance(text, Mapping):
        return None
    outside = {key: raw[key] for key in _BESIDE if key in raw}
    dtypes = {key: raw[key] for key in ("dtype", "torch_dtype") if raw.get(key)}
    own = _OWN.get(str(raw["model_type"]), "mistral")
    return {"model_type": own, **text, **outside, **dtypes}


def text_tensors(tensors: Mapping[str, T]) -> dict[str, T]:
    """Return the text model's tensors, under the names that they have if it stands alone.

    Args:
        tensors: All of the checkpoint's, by name; in either of the two orders of the names.
    """
    found: dict[str, T] = {}
    for name, tensor in tensors.items():
        if name.startswith("language_model."):
            found[name.removeprefix("language_model.")] = tensor
        elif name.startswith("model.language_model."):
            found[name.replace("model.language_model.", "model.", 1)] = tensor
        elif name.startswith("lm_head."):
            found[name] = tensor
    return found
