"""Describe how the checkpoints of some families differ from Llama's, apart from sizes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


NORMS = ("input_layernorm", "post_attention_layernorm")
NORMS_AROUND = (*NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True)
class Style:
    """Names, parts and ``config.json`` of a family's checkpoints.

    Attributes:
        model_type: Its name.
        architecture: Its class in transformers.
        norms: The norms of a block.
        is_joined: True if queries, keys and values are one matrix, and gate and up another.
        has_head_norms: True if queries and keys are normalised.
        has_biases: True if attention, router and experts have biases, and heads sinks.
        experts: A matrix for each expert, or one for all of them.
        norm_weight: Weight of a norm without effect.
        settings: Entries of ``config.json`` besides the sizes.
    """

    model_type: str
    architecture: str
    norms: tuple[str, ...] = NORMS
    is_joined: bool = False
    has_head_norms: bool = False
    has_biases: bool = False
    experts: Literal["apart", "together"] = "apart"
    norm_weight: float = 1.0
    settings: Mapping[str, object] = field(default_factory=dict)


_GEMMA = {"query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh"}

LLAMA = Style("llama", "LlamaForCausalLM")
QWEN3_MOE = Style(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    has_head_norms=True,
    settings={"norm_topk_prob": True},
)
GEMMA2 = Style(
    "gemma2",
    "Gemma2ForCausalLM",
    norms=NORMS_AROUND,
    norm_weight=0.0,
    settings={
        **_GEMMA,
        "sliding_window": 1024,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)
GEMMA3 = Style(
    "gemma3_text",
    "Gemma3ForCausalLM",
    norms=NORMS_AROUND,
    has_head_norms=True,
    norm_weight=0.0,
    settings={
        **_GEMMA,
        "sliding_window": 512,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
)
PHI3 = Style(
    "phi3",
    "Phi3ForCausalLM",
    is_joined=True,
    settings={"sliding_window": 1023, "original_max_position_embeddings": 2048},
)
MAMBA2 = Style("mamba2", "Mamba2ForCausalLM", norms=("norm",))
QWEN3_5 = Style(
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    has_head_norms=True,
    norm_weight=0.0,
    settings={
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.25,
        },
    },
)
GPT_OSS = Style(
    "gpt_oss",
    "GptOssForCausalLM",
    has_biases=True,
    experts="together",
    settings={
        "sliding_window": 128,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150_000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
)
