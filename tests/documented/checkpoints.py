"""Tiny checkpoints under the names that the code blocks load: random, written on the spot.

A folder with the name of a repository stands for it: each library takes a path before a name.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from tests.documented.blocks import find
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.tokenizers import tokenizer_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["save_all"]

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 50257,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
GEMMA2 = {
    "model_type": "gemma2",
    "architectures": ["Gemma2ForCausalLM"],
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 8,
    "hidden_activation": "gelu_pytorch_tanh",
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}
QWEN2 = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "tie_word_embeddings": True,
    "pad_token_id": 3,
}
T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "is_encoder_decoder": True,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "tie_word_embeddings": True,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
BLOOM = {
    "model_type": "bloom",
    "architectures": ["BloomForCausalLM"],
    "vocab_size": 1000,
    "n_layer": 2,
    "n_head": 4,
    "tie_word_embeddings": True,
    "pad_token_id": 3,
}
PHI = {
    "model_type": "phi",
    "architectures": ["PhiForCausalLM"],
    "num_key_value_heads": 4,
    "partial_rotary_factor": 0.5,
}
MISTRAL = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "head_dim": 8,
    "sliding_window": 8,
}
MAMBA = {
    "model_type": "mamba",
    "architectures": ["MambaForCausalLM"],
    "state_size": 8,
    "conv_kernel": 4,
    "expand": 2,
    "time_step_rank": 2,
    "tie_word_embeddings": True,
}
DEEP: dict[str, Any] = {"num_hidden_layers": 24, "tie_word_embeddings": True}

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "openlm-research/open_llama_7b": LLAMA,
    "meta-llama/Llama-2-7b-hf": {**LLAMA, "max_position_embeddings": 512},
    "meta-llama/Llama-2-7b-chat-hf": LLAMA,
    "meta-llama/Llama-3.1-8B": {**LLAMA, "max_position_embeddings": 128},
    "meta-llama/Llama-3.2-1B": {**LLAMA, "num_hidden_layers": 1, "max_position_embeddings": 128},
    "facebook/layerskip-llama3.2-1B": {**LLAMA, "num_hidden_layers": 6},
    "double7/vicuna-68m": {**LLAMA, "num_hidden_layers": 1, "vocab_size": 500},
    "HuggingFaceTB/SmolLM-1.7B": {**LLAMA, **DEEP, "max_position_embeddings": 128},
    "HuggingFaceTB/SmolLM-135M": {**LLAMA, "num_hidden_layers": 1},
    "google/gemma-2-9b": GEMMA2,
    "google/gemma-2-2b": GEMMA2,
    "Qwen/Qwen2-0.5B-Instruct": QWEN2,
    "Qwen/Qwen2.5-0.5B-Instruct": QWEN2,
    "openai-community/gpt2": GPT2,
    "gpt2": GPT2,
    "distilbert/distilgpt2": GPT2,
    "bigscience/bloomz-560m": BLOOM,
    "google/flan-t5-small": T5,
    "google-t5/t5-base": T5,
    "microsoft/phi-2": PHI,
    "mistralai/Mistral-7B-Instruct-v0.3": MISTRAL,
    "state-spaces/mamba-130m-hf": MAMBA,
}
"""Configuration of each repository that a block loads a model from."""

STATED = ("eos_token_id", "pad_token_id", "decoder_start_token_id")
"""What a model's generation configuration repeats."""

EXTRA = {"openai-community/gpt2": {"length_penalty": 1.0}}
"""What else it says: a page reads a length penalty, which is None where the file has none."""

RECIPE = "joaogante/test_generate_from_hub"
DETECTOR = "joaogante/dummy_synthid_detector"


def save_all(folder: Path) -> Path:
    """Write every repository; return the folder they lie in."""
    for name, config in CHECKPOINTS.items():
        size = config.get("vocab_size", 450)
        save_checkpoint(folder / name, **{**config, "vocab_size": size})
        stated = {key: config[key] for key in STATED if key in config}
        settings = {"max_new_tokens": 8, "eos_token_id": 2, **stated, **EXTRA.get(name, {})}
        file = folder / name / "generation_config.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        save_tokenizer(folder / name, size)
    (folder / RECIPE).mkdir(parents=True)
    code = find("generation_strategies:381").code
    (folder / RECIPE / "generate.py").write_text(code, encoding="utf-8")
    save_detector(folder / DETECTOR)
    return folder


def save_tokenizer(folder: Path, size: int) -> None:
    """Write a byte-level tokenizer with as many tokens as the model has; the last ends a text."""
    (folder / "tokenizer.json").write_text(filled(size), encoding="utf-8")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "bos_token": "<|end|>",
        "pad_token": "<|endoftext|>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


@cache
def filled(size: int) -> str:
    """Return a tokenizer's file whose vocabulary is filled up with words."""
    state = json.loads(tokenizer_json("byte_level"))
    vocab = state["model"]["vocab"]
    vocab |= {f"Ġword{number}": number for number in range(len(vocab), size - 1)}
    end = {**state["added_tokens"][0], "id": size - 1, "content": "<|end|>"}
    state["added_tokens"].append(end)
    return json.dumps(state)


def save_detector(folder: Path) -> None:
    """Write a watermark detector."""
    from asyncgen import BayesianDetectorConfig, BayesianDetectorModel

    keys = [654, 400, 836]
    config = BayesianDetectorConfig(watermarking_depth=len(keys))
    settings = {
        "ngram_len": 5,
        "keys": keys,
        "sampling_table_size": 2**8,
        "sampling_table_seed": 0,
        "context_history_size": 16,
    }
    config.set_detector_information("google/gemma-2-2b", settings)
    BayesianDetectorModel(config).save_pretrained(folder)
