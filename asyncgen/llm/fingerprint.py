"""Compute the fingerprint of an engine: equal ones generate equal tokens.

With our kernels a row's numbers depend on nothing but the row, so the same request gets the same
tokens wherever the same things are computed: the same weights, in the same dtype, by the same
code for the same instructions. Torch's kernels round by the number of rows beside it and by the
number of threads, on CUDA as on a CPU; nothing is promised of them, and there is no fingerprint.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch

from asyncgen import native
from asyncgen.runtime.user_code import run_user_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.reference.load_model import PreTrainedModel
    from asyncgen.text.tokenizer import Tokenizer

_PROBE = 32
"""Token ids that the model computes once, spread over its vocabulary."""

_ROWS = 256
"""Rows of a table that are looked at at once."""

_SHOWN = 32
"""Hexadecimal digits: 128 bits."""


def fingerprint_of(
    model: PreTrainedModel, tokenizer: Tokenizer | None, cache_dtype: str = "auto"
) -> str | None:
    """Compute the fingerprint of a loaded model and what is around it.

    The weights go in by what they compute: the bits of the logits of a few tokens, to which every
    layer contributes; and tables, of which these tokens see a few rows, by sums of their bits.

    Args:
        model: Any; a decoder of ours has a fingerprint where our kernels compute it.
        tokenizer: Its tokenizer.
        cache_dtype: What keys and values are kept in, as ``kv_cache_dtype`` says.

    Returns:
        32 hexadecimal digits, or ``None`` where equal tokens cannot be promised.
    """
    try:
        ours = version("asyncgen")
    except PackageNotFoundError:  # a tree that was never installed: it could be any
        return None
    if not _is_exact(model) or (cache_dtype == "int8" and not native.supports_packed_pages()):
        return None
    known = {
        "asyncgen": ours,
        "torch": torch.__version__,
        "kernels": native.cpu_kernels(),
        "dtype": str(model.dtype),
        "cache": cache_dtype,
        "config": _settings(model.core.config.to_dict()),
        "defaults": _settings(model.generation_config.to_dict()),
        "template": getattr(tokenizer, "chat_template", None),
    }
    kept = getattr(tokenizer, "special_tokens_in_content", "allow")
    if kept != "allow":
        known["special_tokens_in_content"] = kept
    found = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        found.update(backend.to_str().encode())
    found.update(_bytes(_logits(model)))
    for name, weight in model.core.named_parameters():
        if name.startswith("embed_"):
            module: Any = model.core.get_submodule(name.rpartition(".")[0])
            packed = getattr(module, "kernel", None)
            # Those of a norm behind the table have one dimension.
            table = weight.detach().reshape(-1, weight.shape[-1])
            if packed is not None:
                table = packed.bytes()
            for sums in _sums(table, model.dtype):
                found.update(_bytes(sums))
    return found.hexdigest()[:_SHOWN]


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a configuration without its origin and author."""
    return {
        name: value
        for name, value in values.items()
        if not name.startswith("_") and name != "transformers_version"
    }


def _is_exact(model: Any) -> bool:
    """Tell whether our kernels compute all of a model."""
    core: Any = getattr(model, "core", None)
    if not callable(model) or not callable(getattr(core, "decode_packed", None)):
        return False
    config, dtype = core.config, model.dtype
    if config.is_encoder_decoder:  # it takes turns beside the batch, with torch's kernels
        return False
    if model.device.type != "cpu" or config.head_dim > native.MOST_HEAD_DIM:
        return False
    return native.supports(dtype)


def _sums(table: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums down and across a table ``[V, E]`` of the bits of what it gives, ``[E]`` and ``[V]``.

    It may be kept in another dtype than it gives, and a part at a time is converted: the whole
    could be the largest thing in memory. One in bytes is taken as it is.
    """
    whole = torch.int32 if dtype.itemsize == 4 else torch.int16
    if table.dtype == torch.uint8:
        dtype = whole = torch.uint8
    down, across = torch.zeros(table.shape[1], dtype=torch.int64, device="cpu"), []
    for start in range(0, len(table), _ROWS):
        bits = table[start : start + _ROWS].to(dtype).view(whole)
        down += bits.sum(0, dtype=torch.int64)
        across.append(bits.sum(1, dtype=torch.int64))
    return down, torch.cat(across)


def _bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a contiguous tensor on the CPU, without numpy."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


@torch.inference_mode()
def _logits(model: PreTrainedModel) -> torch.Tensor:
    """Logits of the probe, float32 [P, V] in memory."""
    size = model.core.config.vocab_size
    most = model.core.config.max_position_embeddings or _PROBE
    ids = torch.linspace(0, size - 1, min(_PROBE, most), dtype=torch.float32, device="cpu").long()[
        None
    ]
    # The model may have hooks of a user.
    output: Any = run_user_code(model, input_ids=ids, use_cache=False, return_dict=True)
    logits: torch.Tensor = output.logits
    return logits[0].float().contiguous()
