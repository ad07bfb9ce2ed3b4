"""Write and read the checkpoint folder in the Hugging Face layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from asyncgen_apps.demo_model.network import Network, NetworkConfig
from asyncgen_apps.demo_model.tokenizer import SPECIALS, save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

PAD_ID, BOS_ID, END_ID = 0, 1, 2
TEMPERATURE, TOP_P = 0.6, 0.9
"""Defaults of sampling."""


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def model_config(config: NetworkConfig) -> dict[str, Any]:
    """Return the content of config.json.

    Args:
        config: The network's shape.

    Returns:
        The content of config.json.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "use_cache": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "dtype": "float32",
    }


def generation_config() -> dict[str, Any]:
    """Return the defaults of generation.

    Returns:
        The content of generation_config.json.
    """
    return {
        "bos_token_id": BOS_ID,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
        "do_sample": True,
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
    }


def export(network: Network, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the whole checkpoint folder.

    Args:
        network: The trained network.
        tokenizer: Its tokenizer.
        folder: Folder to write to; made if missing.
    """
    if tokenizer.token_to_id(SPECIALS[END_ID]) != END_ID:
        raise ValueError("the tokenizer numbers its special tokens differently")
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", model_config(network.config))
    _write_json(folder / "generation_config.json", generation_config())
    save_tokenizer(tokenizer, folder, network.config.context)
    tensors = {
        name: tensor.detach().to(torch.float32).contiguous()
        for name, tensor in network.state_dict().items()
    }
    part = folder / "model.safetensors.part"
    save_file(tensors, part, metadata={"format": "pt"})
    part.chmod(0o644)
    part.replace(folder / "model.safetensors")


def load(folder: Path) -> tuple[Network, Tokenizer]:
    """Read a checkpoint folder back.

    Args:
        folder: The folder.

    Returns:
        The network in evaluation mode, and its tokenizer.
    """
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = NetworkConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        layers=raw["num_hidden_layers"],
        heads=raw["num_attention_heads"],
        kv_heads=raw["num_key_value_heads"],
        context=raw["max_position_embeddings"],
        rope_theta=raw["rope_theta"],
        norm_eps=raw["rms_norm_eps"],
    )
    network = Network(config)
    network.load_state_dict(load_file(folder / "model.safetensors"))
    return network.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))
