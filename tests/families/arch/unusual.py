"""Values that no release has, for each number and switch of a `config.json`, and the keys that
move nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any


@dataclass(frozen=True)
class Change:
    """What to change to see what a key means.

    Attributes:
        values: Values to try, one after another, until logits move.
        also: Other keys that must be set for the key to have a meaning, before and after.
        beside: Other keys that must change with it.
        drop: Keys that the reference derives from it and writes, and that files may lack.
    """

    values: list[Any]
    also: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    beside: dict[str, Any] = field(default_factory=dict)


_LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 3.0, "low_freq_factor": 1.5}
_LLAMA3 |= {"high_freq_factor": 5.0, "original_max_position_embeddings": 21}
_WINDOW = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 2}
_GROUPS = {"n_routed_experts": 6, "n_group": 3, "topk_group": 2}
_FIVE = ["full_attention"] * 5
_WIDE = {"hidden_size": 64}  # more than one pair of a head rotates

CHANGES: dict[str, Change] = {
    "head_dim": Change([16, 12, 6]),
    # Mamba 2: heads times their size is what `expand` says.
    **{
        f"{family}.{key}": Change([value], beside=beside)
        for family, heads, size, expand in (
            ("bamba", "mamba_n_heads", "mamba_d_head", "mamba_expand"),
            ("granitemoehybrid", "mamba_n_heads", "mamba_d_head", "mamba_expand"),
            ("mamba2", "num_heads", "head_dim", "expand"),
        )
        for key, value, beside in (
            (heads, 4, {size: 16}),
            (size, 16, {heads: 4}),
            (expand, 3, {heads: 12}),
            ("hidden_size", 48, {heads: 12}),
        )
    },
    "zamba2.hidden_size": Change([48]),
    "zamba2.num_attention_heads": Change([8], beside={"num_key_value_heads": 8}),
    "zamba2.num_key_value_heads": Change([2], {"use_shared_attention_adapter": False}),
    "falcon_h1.mamba_n_heads": Change([4], beside={"mamba_d_head": 16}),
    "falcon_h1.mamba_d_head": Change([16], beside={"mamba_n_heads": 4}),
    "falcon_h1.mamba_d_ssm": Change([96], beside={"mamba_n_heads": 12}),
    "falcon_h1.mamba_expand": Change([3], beside={"mamba_d_ssm": None, "mamba_n_heads": 12}),
    "falcon_h1.mamba_norm_before_gate": Change([False], {"mamba_rms_norm": True}),
    "bamba.attn_layer_indices": Change([[0, 2]]),
    "gemma3n_text.intermediate_size": Change([[40, 48, 56, 48, 48, 40]]),
    "time_step_limit": Change([[0.31, 0.57]]),
    # Lists of layers that must fit.
    **{
        f"{family}.num_hidden_layers": Change([5], beside={"layer_types": kinds})
        for family, kinds in (
            ("granitemoehybrid", ["mamba", "attention", "mamba", "mamba", "attention"]),
            ("kimi_linear", ["linear_attention", *_FIVE[1:]]),
            ("lfm2", ["conv", *_FIVE[1:]]),
            ("lfm2_moe", ["conv", *_FIVE[1:]]),
            ("lfm3", ["conv", *_FIVE[1:]]),
            ("mellum", _FIVE),
            ("ministral", _FIVE),
        )
    },
    "gemma3n_text.num_hidden_layers": Change(
        [7],
        beside={
            "layer_types": ["sliding_attention", *_FIVE, "full_attention"],
            "activation_sparsity_pattern": None,
            "intermediate_size": 48,
        },
    ),
    **{
        f"{family}.num_hidden_layers": Change(
            [7], beside={"layer_types": ["sliding_attention", *_FIVE, "full_attention"]}
        )
        for family in ("gemma4_text", "gemma4_unified_text")
    },
    "granite_swa.num_hidden_layers": Change([3], beside={"layer_rope_theta": [1e4] * 3}),
    "gpt_neo.num_layers": Change([6], beside={"attention_types": [[["global", "local"], 3]]}),
    # Keys that mean something beside others.
    "granitemoehybrid.rope_parameters.rope_theta": Change(
        [77.0], {"position_embedding_type": "rope"}
    ),
    "apertus.rope_parameters.high_freq_factor": Change([7.0], {"rope_parameters": _LLAMA3}),
    "apertus.rope_parameters.low_freq_factor": Change([2.5], {"rope_parameters": _LLAMA3}),
    "apertus.rope_parameters.original_max_position_embeddings": Change(
        [9], {"rope_parameters": _LLAMA3}
    ),
    **{
        f"{family}.rope_parameters.{key}": Change([value], _WIDE)
        for family in ("gpt_neox", "stablelm")
        for key, value in (("rope_theta", 77.0), ("partial_rotary_factor", 0.75))
    },
    **{
        f"{family}.rope_parameters.{key}": Change([value], {"head_dim": 16})
        for family in ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
        for key, value in (("rope_theta", 77.0), ("partial_rotary_factor", 0.34))
    },
    **{
        f"mimo_v2_flash.rope_parameters.{kind}_attention.{key}": Change([value], {"head_dim": 16})
        for kind in ("full", "sliding")
        for key, value in (("rope_theta", 77.0), ("partial_rotary_factor", 0.46))
    },
    "gpt_neox.rotary_emb_base": Change([77.0], _WIDE, ("rope_parameters",)),
    **{
        f"{family}.rope_parameters.full_attention.rope_theta": Change(
            [77.0], {"global_head_dim": 32}
        )
        for family in ("gemma4_text", "gemma4_unified_text")
    },
    "gemma4_unified_text.use_double_wide_mlp": Change([True], {"num_kv_shared_layers": 3}),
    "gemma4_text.enable_moe_block": Change(
        [True], {"top_k_experts": 2, "num_experts": 5, "moe_intermediate_size": 16}
    ),
    "deepseek_v2.n_group": Change(
        [2], {**_GROUPS, "topk_group": 1, "topk_method": "group_limited_greedy"}
    ),
    "deepseek_v2.topk_group": Change([1], {**_GROUPS, "topk_method": "group_limited_greedy"}),
    "exaone_moe.n_group": Change([2], {**_GROUPS, "num_experts": 6}),
    "exaone_moe.topk_group": Change([1], {**_GROUPS, "num_experts": 6}),
    "kimi_linear.num_expert_group": Change([2], {**_GROUPS, "num_experts": 6}),
    "kimi_linear.topk_group": Change([1], {**_GROUPS, "num_experts": 6}),
    **{
        f"{family}.{key}": Change([value], _GROUPS)
        for family in ("mimo_v2_flash", "nemotron_h")
        for key, value in (("n_group", 2), ("topk_group", 1))
    },
    "nemotron_h.moe_latent_size": Change([24]),
    **{
        f"{family}.num_attention_heads": Change([6], beside={"num_key_value_heads": 6})
        for family in ("deepseek_v3", "glm4_moe_lite", "kimi_linear", "youtu")
    },
    **{
        f"{family}.num_attention_heads": Change([8], beside={"num_key_value_heads": 8})
        for family in ("deepseek_v2", "minicpm3")
    },
    "cohere2_moe.norm_topk_prob": Change([False], {"expert_selection_fn": "sigmoid"}),
    "dots1.max_window_layers": Change([1], {"sliding_window": 6}, ("layer_types",)),
    "dots1.sliding_window": Change([5], {"max_window_layers": 1}, ("layer_types",)),
    "falcon.multi_query": Change([False], beside={"num_kv_heads": 4}),
    "falcon.num_kv_heads": Change([4], {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon.num_ln_in_parallel_attn": Change([1], {"new_decoder_architecture": True}),
    "helium.hidden_size": Change([48], beside={"head_dim": 12}),
    "helium.head_dim": Change([12], beside={"hidden_size": 48}),
    "helium.num_attention_heads": Change([8], beside={"head_dim": 4}),
    "internlm3.attention_bias": Change([True], beside={"mlp_bias": True}),
    "internlm3.mlp_bias": Change([True], beside={"attention_bias": True}),
    "llama4_text.moe_layers": Change([[0, 3]]),
    "qwen3_moe.intermediate_size": Change([40], {"mlp_only_layers": [1]}),
    "qwen3_next.intermediate_size": Change([40], {"mlp_only_layers": [1]}),
    "qwen3_moe.use_sliding_window": Change([True], {"sliding_window": 6}),
    **{
        f"{family}.{key}": Change([value], {**_WINDOW, **also}, ("layer_types",))
        for family in ("qwen2", "qwen2_moe", "qwen3")
        for key, value, also in (
            ("max_window_layers", 4 if family == "qwen2_moe" else 1, {}),
            ("use_sliding_window", True, {"use_sliding_window": False}),
            ("sliding_window", 5, {}),
        )
    },
    "smollm3.use_sliding_window": Change([True], {"sliding_window": 6}, ("layer_types",)),
    "flint.mlp_only_layers": Change([[2]]),
    "qwen2_moe.mlp_only_layers": Change([[2]]),
    "olmo.clip_qkv": Change([0.7]),
}
"""Changes by family and key, or by key alone."""

STILL: dict[str, str] = {
    **dict.fromkeys(
        (
            "*dropout*",
            "*_pdrop",
            "layerdrop",
            "*initializer_*",
            "init_std",
            "*router_aux_loss_coef",
            "*moe_loss_weight",
            "z_loss_coefficient",
            "router_jitter_noise",
            "input_jitter_noise",
            "*w_init_variance_scale",
            "rescale_prenorm_residual",
            "time_step_min",
            "time_step_max",
            "time_step_floor",
            "time_step_rank",
            "linear_a_log_m*",
            "linear_dt_*",
            "summary_*",
            "altup_coef_clip",
            "lambda_std_dev",
        ),
        "of training and of what comes before it",
    ),
    **dict.fromkeys(
        (
            "*use_cache",
            "*output_*",
            "*return_dict",
            "*chunk_size*",
            "block_size",
            "*is_encoder_decoder",
            "is_decoder",
            "num_logits_to_keep",
            "pretraining_tp",
            "*label2id.*",
            "*add_cross_attention",
            "use_mamba*",
            "use_associative_scan",
            "residual_in_fp32",
            "use_mem_eff_path",
            "slow_but_exact",
            "reorder_and_upcast_attn",
            "*softmax_in_fp32",
            "enable_moe_fp32_combine",
            "moe_shared_expert_overlap",
        ),
        "how numbers are computed, not which",
    ),
    **dict.fromkeys(("*_token_id", "vocab_size"), "names of tokens"),
    **dict.fromkeys(
        (
            "*max_position_embeddings",
            "model_max_length",
            "n_positions",
            "n_ctx",
            "*max_seq_len",
        ),
        "lengths; `test_published.py`",
    ),
    **dict.fromkeys(
        (
            "layer_types",
            "rope_scaling",
            "*hidden_act",
            "activation_function",
            "granitemoehybrid.layers_block_type",
            "granitemoehybrid.position_embedding_type",
            "nemotron_h.hybrid_override_pattern",
            "kimi_linear.linear_attn_config",
            "codegen.rope_parameters",
            "gptj.rope_parameters",
            "gemma4_*text.use_bidirectional_attention",
        ),
        "names and objects; `variants.py`",
    ),
    **dict.fromkeys(
        (
            "qk_head_dim",
            "n_embed",
            "_sliding_window_pattern",
            "rope_theta",
            "*t5.is_gated_act",
            "gemma4_*text.per_layer_config.*",
            "internlm3.bias",
            "internlm3.qkv_bias",
            "dbrx.ffn_config.hidden_size",
            "dbrx.num_key_value_heads",
            "gpt_bigcode.num_key_value_heads",
            "falcon.intermediate_size",
            "nemotron_h.expand",
            "nemotron_h.mamba_proj_bias",
            "zamba2.attention_h*",
            "zamba2.hybrid_layer_ids",
            "zamba2.kv_channels",
            "zamba2.mamba_headdim",
            "zamba2.num_query_groups",
            "glm4_moe_lite.first_k_dense_replace",
        ),
        "made of other keys, which are changed, or their other names",
    ),
    **dict.fromkeys(
        (
            "qwen3_5_moe_text.intermediate_size",
            "kolibri1.intermediate_size",
            "mellum.intermediate_size",
            "solar_open.intermediate_size",
            "cohere2_moe.moe_intermediate_size",
            "flex_olmo.moe_intermediate_size",
            "olmoe.moe_intermediate_size",
            "nemotron_h.n_shared_experts",
            "granite_swa.rope_parameters.rope_theta",
            "hunyuan_v1_dense.rope_parameters.factor",
            "biogpt.layer_norm_eps",
            "mt5.scale_decoder_outputs",
            "mt5.tie_word_embeddings",
            "mpt.attn_config.attn_uses_sequence_id",
            "mpt.embedding_fraction",
            "mpt.learned_pos_emb",
            "*num_nextn_predict_layers",
        ),
        "of parts that such a model does not have",
    ),
    **dict.fromkeys(
        (
            "dbrx.tie_word_embeddings",
            "iquestcoder.clip_qkv",
            "iquestcoder.use_sliding_window",
            "olmoe.head_dim",
            "bitnet.head_dim",
        ),
        "the reference itself refuses other values",
    ),
    **dict.fromkeys(
        (
            "deepseek_v3.head_dim",
            "youtu.head_dim",
            "deepseek_v2.head_dim",
            "kimi_linear.head_dim",
            "minicpm3.head_dim",
            "mistral4.head_dim",
        ),
        "the size of what rotates, again: files have qk_rope_head_dim",
    ),
    **dict.fromkeys(
        ("nemotron_h.time_step_*", "zamba2.time_step_*"),
        "the reference has bounds of its own; see `test_hybrids.py`",
    ),
    "zamba2.num_hidden_layers": "the list of layers tells their number",
    "zamba2.use_conv_bias": "the convolution has a bias, whatever the file says",
    "mimo_v2_flash.layernorm_epsilon": "the makers' name, which the reference does not read",
    "dbrx.attn_config.rope_theta": "the makers' name, which the reference does not read",
}
"""Keys that move nothing, by family and key or by key, and why."""


def change_of(family: str, path: tuple[str, ...], value: object) -> Change:
    """Give the change of a key: one of the table, or of its value's kind."""
    name = ".".join(path)
    for key in (f"{family}.{name}", name):
        if key in CHANGES:
            return CHANGES[key]
    return Change(_values(value))


def is_still(family: str, path: tuple[str, ...]) -> bool:
    """Return whether a key is known to move nothing."""
    name = ".".join(path)
    if f"{family}.{name}" in CHANGES:
        return False
    return any(fnmatch(name, each) or fnmatch(f"{family}.{name}", each) for each in STILL)


def _values(value: object) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 3, value + 2, 2 * value, value - 1, 2, 1, 5, 6]
    if isinstance(value, float):
        if value < 1e-2:
            return [3e-2, 0.9]
        if value > 1000:
            return [value / 17, value / 1717]
        return [1.3 * value + 0.01, 0.7 * value, 0.05]
    if isinstance(value, list):
        return [[1.3 * one + 0.05 * place for place, one in enumerate(value)], value[::-1]]
    return [True, 3, 0.7] if value is None else []
