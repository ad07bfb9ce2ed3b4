"""Tiny random models in pairs: the reference implementation's and ours, with the same weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.checkpoints.weight_loading import in_order
from asyncgen.families.config import ModelConfig
from asyncgen.models.attention.dense import DenseAttention
from asyncgen.models.core import make_core

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.models.decoder import DecoderLM

SMALL: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}

NORMS = ("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")
"""Endings of weights that are random around one."""


def random_config(model_type: str, **overrides: Any) -> dict[str, Any]:
    """The content of a small ``config.json``; a value of ``...`` leaves its key out."""
    merged = {"model_type": model_type, **SMALL, **overrides}
    return {key: value for key, value in merged.items() if value is not ...}


def reference_model(raw: Mapping[str, Any], seed: int) -> Any:
    """A transformers model in float32 whose every weight is random, norms and biases too."""
    import pytest

    transformers = pytest.importorskip("transformers")
    settings = {key: value for key, value in raw.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(raw["model_type"], **settings)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            center = 1.0 if name.endswith(NORMS) else 0.0
            parameter.copy_(center + 0.1 * noise)
    return model


def load_from_state_dict(core: DecoderLM, state_dict: Mapping[str, Tensor]) -> None:
    """Fill a model from a dictionary of checkpoint tensors, as a loader does from files."""
    for rule in core.weight_map():
        sources = [state_dict[name] for name in rule.sources]
        assert [tuple(source.shape) for source in sources] == list(rule.shapes)
        if rule.transposed:
            sources = [source.mT for source in sources]
        module_name, _, name = rule.target.rpartition(".")
        tensor = in_order(torch.cat(sources), rule.order).to(core.dtype).clone()
        parameter = nn.Parameter(tensor, requires_grad=False)
        setattr(core.get_submodule(module_name), name, parameter)
    core.prepare()


def our_model(raw: Mapping[str, Any], state_dict: Mapping[str, Tensor]) -> DecoderLM:
    """Our model of a configuration, with given weights, built as a loader builds it."""
    config = ModelConfig.from_hf(raw)
    with torch.device("meta"):
        core = make_core(config, dtype=torch.float32)
    load_from_state_dict(core, state_dict)
    return core


def random_pair(model_type: str, seed: int = 0, **overrides: Any) -> tuple[Any, DecoderLM]:
    """A transformers model and ours, float32, with the same random weights.

    Args:
        model_type: Architecture.
        seed: Of the weights.
        **overrides: Keys of ``config.json`` that differ from `SMALL`.
    """
    raw = random_config(model_type, **overrides)
    reference = reference_model(raw, seed)
    return reference, our_model(raw, reference.state_dict())


def random_model(
    raw: Mapping[str, Any],
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    spread: float = 0.1,
) -> DecoderLM:
    """Our model of a configuration with random weights, without a reference beside it.

    Args:
        raw: The content of a ``config.json``.
        seed: Of the weights.
        dtype: Of the weights.
        spread: Standard deviation of the weights of products.
    """
    config = ModelConfig.from_hf(raw)
    core = make_core(config, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in core.named_parameters():
        center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        own = spread if parameter.dim() > 1 and not name.startswith("embed") else 0.1
        parameter.copy_(center + own * torch.randn(parameter.shape, generator=generator))
    core.prepare()
    return core


def random_ids(rows: int, length: int, seed: int = 0, vocab_size: int = 97) -> Tensor:
    """Random token ids ``[rows, length]``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (rows, length), generator=generator)


def all_logits(
    core: DecoderLM,
    input_ids: Tensor,
    *,
    cache: Cache | None = None,
    attention_mask: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Our logits ``[B, S, V]`` of every position."""
    cache = DynamicCache() if cache is None else cache
    start = cache.get_seq_length()
    if positions is None:
        end = start + input_ids.shape[1]
        positions = torch.arange(start, end, device=input_ids.device)[None]
    attention = DenseAttention(core.config, cache, attention_mask)
    return core.project(core.hidden(core.embed(input_ids), positions, attention))
