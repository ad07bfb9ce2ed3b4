"""Gemma 1: wide heads, a gate with GELU, embeddings scaled by the root of their width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import LLAMA_NAMES, RMS_PLUS_ONE, Family

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

GEMMA = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "tie_word_embeddings": True,
}
GEMMA_TOKENIZERS = ("GemmaTokenizer", "GemmaTokenizerFast")


def _activation(values: ConfigValues) -> str:
    # The first files said "gelu", but the models were trained with the approximation.
    name = values.activation()
    return "gelu_pytorch_tanh" if name == "gelu" else name


FAMILY = Family(
    "gemma",
    "GemmaForCausalLM",
    GEMMA_TOKENIZERS,
    names=LLAMA_NAMES,
    defaults=GEMMA,
    only={"use_bidirectional_attention": False},
    activation=_activation,
    norm=RMS_PLUS_ONE,
    embedding_scale=lambda values: values.count("hidden_size") ** 0.5,
    scales_rows=True,
    rounds_scale=True,
)
