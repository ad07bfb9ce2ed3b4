"""The same tiny random models in transformers and here, and drafts of them that often agree."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.reference.auto import AutoModelForSeq2SeqLM
from asyncgen.reference.load_model import load_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def pair(folder: Path, seed: int = 0, model_type: str = "llama", **shape: Any) -> tuple[Any, Any]:
    """Random weights, in transformers and here."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **{**SHAPE, **shape})
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    theirs.save_pretrained(folder)
    return theirs, load_model(folder)


def load_seq2seq(folder: Path) -> Any:
    """A model with an encoder."""
    return AutoModelForSeq2SeqLM.from_pretrained(folder)


def near(
    theirs: Any, folder: Path, amount: float = 0.02, load: Callable[[Path], Any] = load_model
) -> tuple[Any, Any]:
    """A model that says something else now and then, in transformers and here."""
    torch.manual_seed(1)
    other = copy.deepcopy(theirs)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter) * amount)
    other.save_pretrained(folder)
    return other, load(folder)
