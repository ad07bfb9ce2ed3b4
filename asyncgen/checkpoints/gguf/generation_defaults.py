"""Read the defaults of generation from the metadata of a GGUF file: end tokens and sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.gguf.ends import end_tokens
from asyncgen.checkpoints.gguf.gguf_file import as_written

if TYPE_CHECKING:
    from asyncgen.checkpoints.gguf.gguf_file import Metadata

_NUMBERS: Final = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}


def generation_values(metadata: Metadata) -> dict[str, Any]:
    """Return fields of a `GenerationConfig`.

    Args:
        metadata: Metadata of a file.

    Raises:
        ModelLoadError: A key is of the wrong type.
    """
    found: dict[str, Any] = {
        f"{role}_token_id": metadata.whole(f"tokenizer.ggml.{theirs}_token_id")
        for role, theirs in (("bos", "bos"), ("pad", "padding"))
    }
    found["decoder_start_token_id"] = metadata.own.whole("decoder_start_token_id")
    ends = end_tokens(metadata)
    found["eos_token_id"] = ends if len(ends) > 1 else (ends[0] if ends else None)
    numbers = {ours: metadata.number(key) for key, ours in _NUMBERS.items()}
    sampling: dict[str, Any] = {
        name: as_written(number) for name, number in numbers.items() if number
    }
    top_k = metadata.whole("general.sampling.top_k")
    if top_k is not None:
        sampling["top_k"] = top_k
    if sampling:
        sampling["do_sample"] = numbers["temperature"] != 0
    return {name: value for name, value in {**found, **sampling}.items() if value is not None}
