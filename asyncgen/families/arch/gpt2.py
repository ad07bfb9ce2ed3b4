"""GPT-2: learned positions, norms by layer, a plain feed-forward.

Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.3. Its
checkpoints store every matrix as ``[in, out]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.families.plans.declaration import LAYER, Family

if TYPE_CHECKING:
    from asyncgen.families.plans.config_values import ConfigValues

GPT2_NAMES = {
    "embed_tokens": "transformer.wte",
    "embed_positions": "transformer.wpe",
    "layers": "transformer.h",
    "norm": "transformer.ln_f",
    "lm_head": "lm_head",
    "input_norm": "ln_1",
    "qkv": "attn.c_attn",
    "output": "attn.c_proj",
    "post_norm": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
GPT2_SPELLINGS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
GPT2_DEFAULTS = {
    "vocab_size": 50257,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "hidden_act": "gelu_new",
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
GPT2_UNREAD = frozenset(
    {"intermediate_size", "hidden_act", "rms_norm_eps", "num_key_value_heads", "head_dim"}
)


def four_times(values: ConfigValues) -> int:
    """Read the width of the feed-forward: by default four times that of the stream."""
    return values.count("intermediate_size", default=4 * values.count("hidden_size"))


def _scales(values: ConfigValues) -> tuple[float, ...] | None:
    is_plain = values.flag("scale_attn_weights")
    is_layered = values.flag("scale_attn_by_inverse_layer_idx")
    if is_plain and not is_layered:
        return None
    size = values.count("hidden_size") // values.count("num_attention_heads")
    root = size**-0.5 if is_plain else 1.0
    layers = values.count("num_hidden_layers")
    return tuple(root / (layer + 1 if is_layered else 1) for layer in range(layers))


FAMILY = Family(
    "gpt2",
    "GPT2LMHeadModel",
    ("GPT2Tokenizer", "GPT2TokenizerFast"),
    names=GPT2_NAMES,
    # Causal masks, which early checkpoints stored with every layer.
    unneeded=(r"\.attn\.(masked_)?bias$",),
    is_transposed=True,
    defaults=GPT2_DEFAULTS,
    spellings=GPT2_SPELLINGS,
    unread=GPT2_UNREAD,
    width=four_times,
    positions="table",
    norm=LAYER,
    has_qkv_bias=True,
    has_up_bias=True,
    is_gated=False,
    attention_scale=_scales,
    has_token_types=True,
)
