"""Write checkpoints of several families with random weights, without a download."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from asyncgen_apps.bench.shape import ModelShape
from asyncgen_apps.bench.state_shapes import STATE_SHAPES
from asyncgen_apps.bench.styles import GEMMA2, GEMMA3, GPT_OSS, PHI3, QWEN3_MOE

if TYPE_CHECKING:
    from pathlib import Path

    import torch


FAINT = 1 / 32
"""Factor on the output of a layer that adds little."""

OUTPUTS = (".o_proj.weight", ".down_proj.weight", ".down_proj")
"""Endings of the names of weights that write to the residual stream."""

NORMS = ("norm.weight", "norm_f.weight")
"""Endings of the names of norms."""

DRAFTING = {
    "num_assistant_tokens": 5,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.0,
}
SPACE = "Ġ"
"""Character of the space in byte-level tokenizers."""


SHAPES = {  # hidden, layers, heads, kv_heads, ffn, vocab
    "5m": ModelShape(256, 6, 8, 4, 688, 4096),
    "135m": ModelShape(576, 30, 9, 3, 1536, 49152),
    "0.5b": ModelShape(896, 24, 14, 2, 4864, 151936),
    "moe": ModelShape(512, 24, 8, 4, 256, 32768, experts=64, chosen=8, style=QWEN3_MOE),
    "gemma2": ModelShape(640, 17, 4, 2, 2048, 49152, head=256, style=GEMMA2),
    "gemma3": ModelShape(640, 18, 4, 1, 2048, 49152, head=256, style=GEMMA3),
    "phi3": ModelShape(576, 25, 6, 6, 1536, 32064, tied=False, style=PHI3),
    "qwen3-moe": ModelShape(
        512, 16, 8, 2, 128, 32768, experts=32, chosen=4, head=128, style=QWEN3_MOE
    ),
    "gpt-oss": ModelShape(
        384, 13, 8, 2, 192, 49152, tied=False, experts=32, chosen=4, head=64, style=GPT_OSS
    ),
    **STATE_SHAPES,
}

MADE = {  # hidden, layers, heads, kv_heads, ffn, vocab
    "1b": ModelShape(2048, 16, 32, 8, 8192, 128256, context=16384),
    "8b": ModelShape(4096, 32, 32, 8, 14336, 128256, tied=False, context=16384),
}
"""Shapes that are described on disk and drawn on the device: they are too large to store."""


def write_checkpoint(
    folder: Path, shape: ModelShape, dtype: str, seed: int = 0, *, loud_layers: int | None = None
) -> None:
    """Write config, weights and tokenizer of a random model.

    It has no end-of-sequence token: every generation runs to its full length. As a draft model it
    guesses five tokens each time, whatever its confidence, which random weights do not have. A
    shallower checkpoint of the same seed has the same weights in the layers that it has.

    Args:
        folder: Folder to write to; it must exist.
        shape: Sizes of the model.
        dtype: Type of the stored weights, ``float32`` or ``bfloat16``.
        seed: Same seed, same bytes.
        loud_layers: Number of first layers after which layers add little, so that a draft of the
            first ones is often right; ``None``: all are alike.
    """
    from safetensors.torch import save_file

    write_description(folder, shape, dtype, seed)
    weights = _weights(shape, dtype, seed)
    for layer in range(shape.layers if loud_layers is None else loud_layers, shape.layers):
        for name, weight in weights.items():
            if name.startswith(f"model.layers.{layer}.") and name.endswith(OUTPUTS):
                weight.mul_(FAINT)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_description(folder: Path, shape: ModelShape, dtype: str, seed: int = 0) -> None:
    """Write config and tokenizer only; arguments as of :func:`write_checkpoint`."""
    (folder / "config.json").write_text(json.dumps(_config(shape, dtype), indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"pad_token_id": 0, **DRAFTING}))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(shape.vocab, seed)))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.context,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))


def _config(shape: ModelShape, dtype: str) -> dict[str, object]:
    """Describe the model as Hugging Face folders do."""
    style = shape.style
    experts: dict[str, object] = {
        "moe_intermediate_size": shape.ffn,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.chosen,
    }
    if style.experts == "together":
        experts = {"num_local_experts": shape.experts, "num_experts_per_tok": shape.chosen}
    return {
        "architectures": [style.architecture],
        "model_type": style.model_type,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.ffn,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": shape.context,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        **({"head_dim": shape.head_dim} if shape.head or shape.experts else {}),
        **(experts if shape.experts else {}),
        **style.settings,
        **shape.settings(),
    }


def _weights(shape: ModelShape, dtype: str, seed: int) -> dict[str, torch.Tensor]:
    """Draw the weights: normal, of a size that keeps activations finite in both types."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    stored = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]

    def draw(name: str, size: tuple[int, ...]) -> torch.Tensor:
        if name.endswith(("mixer.norm.weight", "linear_attn.norm.weight")):
            return torch.ones(size, dtype=stored, device="cpu")
        if name.endswith(NORMS):
            return torch.full(size, shape.style.norm_weight, dtype=stored, device="cpu")
        return (
            torch.randn(size, generator=generator, dtype=torch.float32, device="cpu")
            .mul_(0.02)
            .to(stored)
        )

    return {name: draw(name, size) for name, size in shape.tensors()}


def byte_alphabet() -> list[str]:
    """Return the character that stands for each byte in a byte-level vocabulary.

    Printable bytes stand for themselves; the others get the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    shifted = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(shifted)) for byte in range(256)]


def _tokenizer(vocab_size: int, seed: int) -> dict[str, object]:
    """Describe a byte-level BPE tokenizer whose tokens look like words.

    Nearly all tokens begin with a space, as frequent tokens of real vocabularies do. The streamers
    of transformers hold text back until a space: without spaces they would wait for the end, which
    would be unfair.
    """
    vocab, merges = _words(vocab_size, random.Random(seed))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(vocab)},
            "merges": merges,
        },
    }


def _words(vocab_size: int, draw: random.Random) -> tuple[list[str], list[list[str]]]:
    """Grow a vocabulary by random merges: first pairs of letters, then words with a space."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    vocab = byte_alphabet()
    known = set(vocab)
    merges: list[list[str]] = []

    def merge(left: str, right: str) -> bool:
        if left + right in known:
            return False
        known.add(left + right)
        vocab.append(left + right)
        merges.append([left, right])
        return True

    syllables = list(letters)
    while len(vocab) < min(vocab_size, 256 + 128):
        left, right = draw.choice(letters), draw.choice(letters)
        if merge(left, right):
            syllables.append(left + right)
    words = [SPACE]
    while len(vocab) < vocab_size:
        left, right = draw.choice(words), draw.choice(syllables)
        if len(left) < 8 and merge(left, right):
            words.append(left + right)
    return vocab, merges
