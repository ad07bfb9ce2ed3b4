"""Cohere's Command R: both parts of a layer read one normalised stream; adjacent features
rotate."""

from __future__ import annotations

from asyncgen.families.plans.declaration import LLAMA_NAMES, SMALL, Family, without
from asyncgen.families.plans.layer_plan import HeadNormPlan, NormPlan

WITHOUT_BIAS = NormPlan("layer")
COHERE = {
    **SMALL,
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
    "logit_scale": 0.0625,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 5,
    "eos_token_id": 255001,
    "tie_word_embeddings": True,
}
COHERE_NAMES = without(LLAMA_NAMES, "post_norm")
COHERE_SPELLINGS = {"rms_norm_eps": "layer_norm_eps"}

FAMILY = Family(
    "cohere",
    "CohereForCausalLM",
    ("CohereTokenizer", "CohereTokenizerFast"),
    names=COHERE_NAMES,
    defaults=COHERE,
    spellings=COHERE_SPELLINGS,
    unread=frozenset({"rms_norm_eps"}),
    is_interleaved=True,
    norm=WITHOUT_BIAS,
    head_norm=lambda values: (
        HeadNormPlan(WITHOUT_BIAS, "each") if values.flag("use_qk_norm") else None
    ),
    is_parallel=True,
    logit_scale=lambda values: values.positive("logit_scale"),
)
