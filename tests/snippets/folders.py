"""The checkpoints that the snippets load: small, random, written on the spot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.tokenizers import save_tokenizer, tokenizer_json

if TYPE_CHECKING:
    from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITHOUT_TOKENIZER = "plain"
CHECKPOINTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": (
        "byte_level",
        {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 256},
        {"chat_template": TEMPLATE},
    ),
    "draft": (
        "byte_level",
        {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1},
        {},
    ),
    "foreign-draft": (
        "byte_fallback",
        {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1},
        {},
    ),
    "gpt2": (
        "byte_level",
        {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "tie_word_embeddings": True,
        },
        {"pad_token": None},
    ),
    "t5": (
        "metaspace",
        {
            "architectures": ["T5ForConditionalGeneration"],
            "model_type": "t5",
            "is_encoder_decoder": True,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "tie_word_embeddings": True,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
        {"pad_token": "<unk>"},
    ),
}
"""For each folder its kind of tokenizer, and what its configurations say beside the usual."""


def save_all(folder: Path) -> Path:
    """Write every checkpoint; return the folder they lie in."""
    for name, (kind, model, tokenizer) in CHECKPOINTS.items():
        vocab = json.loads(tokenizer_json(kind))["model"]["vocab"]
        save_checkpoint(folder / name, vocab_size=len(vocab), **model)
        save_tokenizer(folder / name, kind, **tokenizer)
    save_checkpoint(folder / WITHOUT_TOKENIZER, architectures=["LlamaForCausalLM"])
    return folder
