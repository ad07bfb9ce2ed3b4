"""Defaults of each type are those of the reference."""

from __future__ import annotations

import pytest

from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.config import ModelConfig, T5Config
from tests.cases import for_each

transformers = pytest.importorskip("transformers")

UNSAID = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2},
    "glm4_moe": {"head_dim": 128},
}
"""What the reference has no number for, or none that it can do with."""

UNLIKE = {
    # Nothing of them depends on a place, and so there is no last one.
    ("granitemoehybrid", "max_position_embeddings"),
    ("jamba", "max_position_embeddings"),
    ("kimi_linear", "max_position_embeddings"),
    ("nemotron_h", "max_position_embeddings"),
    ("zamba2", "max_position_embeddings"),
    # The cache holds pairs of values.
    ("diffllama", "head_dim"),
}
"""What ours says otherwise, for a reason."""

OF_ALL_LAYERS = {("mimo_v2_flash", "num_key_value_heads")}
"""What ours says of all layers, and the reference of some."""


@for_each("model_type", sorted(FAMILIES))
def test_an_empty_file_means_what_it_means_to_the_reference(model_type: str) -> None:
    theirs = transformers.AutoConfig.for_model(model_type)
    ours = ModelConfig.from_hf({"model_type": model_type, **UNSAID.get(model_type, {})})
    names = ["vocab_size", "hidden_size", "num_attention_heads", "eos_token_id", "pad_token_id"]
    if model_type not in ("t5", "mt5"):
        names += ["num_hidden_layers", "bos_token_id", "tie_word_embeddings"]
    has_mixers = not hasattr(theirs, "num_attention_heads")
    if has_mixers:  # of other heads, or of none
        names.remove("num_attention_heads")
        assert ours.num_attention_heads == getattr(theirs, "num_heads", 1)
    for name in names:
        if (model_type, name) in UNLIKE:
            continue
        assert getattr(ours, name) == getattr(theirs, name, None), name
    if model_type.startswith("gemma4"):  # it has no number for all layers
        sizes = [plan.varied and plan.varied.head_dim for plan in ours.layer_plans]
        assert sizes == [theirs.per_layer_config[layer].head_dim for layer in range(len(sizes))]
        return
    for name in ("max_position_embeddings", "num_key_value_heads", "head_dim", "hidden_act"):
        if model_type in ("t5", "mt5") or (model_type, name) in OF_ALL_LAYERS | UNLIKE:
            continue
        # A latent head is two parts, of which the reference calls the one that turns a head.
        of = "qk_head_dim" if name == "head_dim" and hasattr(theirs, "qk_head_dim") else name
        if getattr(theirs, of, None) is not None:
            assert getattr(ours, name) == getattr(theirs, of), name
    kinds = getattr(theirs, "layer_types", None)
    if kinds is not None and not has_mixers and (model_type, "layer_types") not in UNLIKE:
        ours_of = {"conv": "linear_attention"}  # any state
        assert tuple(ours_of.get(kind, kind) for kind in kinds) == ours.layer_types


@for_each("name", ["relu", "gated-gelu", "gated-silu", "gelu_new", "gelu"])
@for_each("layers", [{}, {"num_layers": 3}, {"num_decoder_layers": 2}])
def test_t5_files_mean_what_they_mean_to_the_reference(name: str, layers: dict[str, int]) -> None:
    theirs = transformers.T5Config(feed_forward_proj=name, **layers)
    ours = ModelConfig.from_hf({"model_type": "t5", "feed_forward_proj": name, **layers})
    assert isinstance(ours, T5Config)
    assert ours.is_encoder_decoder
    assert ours.hidden_act == theirs.dense_act_fn
    assert ours.is_gated_act == theirs.is_gated_act
    assert ours.num_encoder_layers == theirs.num_layers
    assert ours.num_hidden_layers == theirs.num_decoder_layers
    assert ours.head_dim == theirs.d_kv
    assert ours.relative_attention_max_distance == theirs.relative_attention_max_distance
