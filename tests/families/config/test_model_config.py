"""`ModelConfig` against transformers' reading of the same file, and its errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncgen.errors import ModelLoadError, UnsupportedModelError
from asyncgen.families.config import ModelConfig
from tests.cases import for_each
from tests.models.build import random_config

TYPES = ["llama", "mistral", "qwen2", "qwen3"]
SHARED = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "hidden_act",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
]


def reference(raw: dict[str, Any]) -> Any:
    transformers = pytest.importorskip("transformers")
    settings = {key: value for key, value in raw.items() if key != "model_type"}
    return transformers.AutoConfig.for_model(raw["model_type"], **settings)


@pytest.mark.parametrize("model_type", TYPES)
def test_missing_keys_mean_what_they_mean_in_the_reference(model_type: str) -> None:
    theirs = reference({"model_type": model_type})
    ours = ModelConfig.from_hf({"model_type": model_type})
    for name in SHARED:
        assert getattr(ours, name) == getattr(theirs, name), name
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == head_dim
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.sliding_window == getattr(theirs, "sliding_window", None)


@for_each("model_type", TYPES)
@for_each(
    "keys",
    [
        {"num_key_value_heads": ..., "num_attention_heads": 32, "hidden_size": 64},
        {"sliding_window": None},
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        {"eos_token_id": [2, 3], "bos_token_id": None},
        {"rope_theta": 5000.0},
        {"rope_parameters": {"rope_theta": 77.0}},
        {"rope_theta": 3.0, "rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}},
    ],
)
def test_given_keys_mean_what_they_mean_in_the_reference(
    model_type: str, keys: dict[str, Any]
) -> None:
    raw = random_config(model_type, **keys)
    theirs, ours = reference(raw), ModelConfig.from_hf(raw)
    for name in SHARED:
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    if hasattr(theirs, "layer_types"):
        assert list(ours.layer_types) == theirs.layer_types


@pytest.mark.parametrize("model_type", TYPES)
def test_null_means_one_key_head_per_query_head(model_type: str) -> None:
    config = ModelConfig.from_hf(random_config(model_type, num_key_value_heads=None))
    assert config.num_key_value_heads == 6


@pytest.mark.parametrize("head_dim", [None, ...])
def test_heads_share_the_width_where_no_size_is_given(head_dim: Any) -> None:
    assert ModelConfig.from_hf(random_config("llama", head_dim=head_dim)).head_dim == 8
    assert ModelConfig.from_hf(random_config("qwen3", head_dim=head_dim)).head_dim == 128


def test_mistral_slides_in_every_layer_by_default() -> None:
    sliding = ModelConfig.from_hf(random_config("mistral", sliding_window=7))
    assert [sliding.window(layer) for layer in range(3)] == [7, 7, 7]
    full = ModelConfig.from_hf(random_config("mistral", sliding_window=None))
    assert [full.window(layer) for layer in range(3)] == [None] * 3


def test_a_window_that_is_not_in_use_is_none() -> None:
    config = ModelConfig.from_hf(random_config("qwen2", sliding_window=7))
    assert config.sliding_window is None
    assert config.window(2) is None


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("name", ["rope_type", "type"])
def test_every_spelling_of_rope_scaling_is_read(key: str, name: str) -> None:
    raw = random_config("llama", rope_theta=9.0, **{key: {name: "linear", "factor": 4.0}})
    rope = ModelConfig.from_hf(raw).rope
    assert (rope.rope_type, rope.factor, rope.theta) == ("linear", 4.0, 9.0)


def test_yarn_takes_its_original_length_from_where_it_is_written() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    assert (
        ModelConfig.from_hf(
            random_config("llama", rope_scaling=scaling)
        ).rope.original_max_position_embeddings
        == 64
    )
    beside = random_config("llama", rope_scaling=scaling, original_max_position_embeddings=16)
    assert ModelConfig.from_hf(beside).rope.original_max_position_embeddings == 16
    inside = random_config(
        "llama", rope_scaling={**scaling, "original_max_position_embeddings": 32}
    )
    assert ModelConfig.from_hf(inside).rope.original_max_position_embeddings == 32


@for_each(
    ("stated", "expected"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.float16"}, "float16"),
        ({"dtype": None, "torch_dtype": "float32"}, "float32"),
        ({"dtype": "auto"}, None),
        ({}, None),
    ],
)
def test_dtype_has_two_spellings(stated: dict[str, Any], expected: str | None) -> None:
    assert ModelConfig.from_hf(random_config("llama", **stated)).dtype == expected


@pytest.mark.parametrize("model_type", TYPES)
def test_config_survives_to_dict_and_from_hf(model_type: str) -> None:
    raw = random_config(model_type, rope_scaling={"type": "linear", "factor": 2.0}, extra="kept")
    config = ModelConfig.from_hf(raw)
    written = json.loads(json.dumps(config.to_dict()))
    assert written["extra"] == "kept"
    again = ModelConfig.from_hf(written)
    assert again == config


def test_an_unknown_model_type_lists_those_supported() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'gpt9'.*llama, .*mistral, .*qwen2, .*qwen3"):
        ModelConfig.from_hf({"model_type": "gpt9"})
    with pytest.raises(UnsupportedModelError, match="no `model_type`"):
        ModelConfig.from_hf({})


@for_each(
    ("model_type", "keys", "message"),
    [
        ("llama", {"hidden_act": "swiglu"}, r"`hidden_act` is 'swiglu': supported are silu"),
        ("llama", {"hidden_size": "big"}, r"`hidden_size` is 'big': must be a whole number"),
        ("llama", {"num_hidden_layers": 0}, r"`num_hidden_layers` is 0: .* at least 1"),
        ("llama", {"num_key_value_heads": 4}, r"`num_key_value_heads` is 4: must divide"),
        ("llama", {"head_dim": 7}, r"`head_dim` is 7: .* must be even"),
        ("llama", {"head_dim": None, "hidden_size": 50}, r"`hidden_size` is 50: .* multiple"),
        ("llama", {"rms_norm_eps": "x"}, r"`rms_norm_eps` is 'x'"),
        ("llama", {"tie_word_embeddings": "yes"}, r"`tie_word_embeddings` is 'yes'"),
        ("llama", {"eos_token_id": ["a"]}, r"`eos_token_id` is \['a'\]"),
        ("llama", {"bos_token_id": 1.5}, r"`bos_token_id` is 1\.5"),
        ("llama", {"dtype": "int8"}, r"`dtype` is 'int8': supported are float32"),
        ("llama", {"partial_rotary_factor": 0.5}, r"`partial_rotary_factor` is 0\.5"),
        ("llama", {"rope_theta": 0}, r"`rope_theta` is 0\.0: must be above 0"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "other"}},
            r"`rope_scaling\.rope_type` is 'other': supported are default",
        ),
        ("llama", {"rope_scaling": {"type": "linear"}}, r"`rope_scaling\.factor` is None"),
        (
            "llama",
            {"rope_scaling": {"type": "llama3", "factor": 2.0, "high_freq_factor": 4.0}},
            r"low_freq_factor` is None",
        ),
        ("llama", {"rope_scaling": "linear"}, r"`rope_scaling` is 'linear': must be an object"),
        (
            "llama",
            {"rope_scaling": {"type": "longrope", "short_mscale": 1.2}},
            r"`rope_scaling\.short_mscale` is 1\.2: is not supported",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
            r"`rope_scaling\.short_factor` is \[1\.0\]: must list a number for each of",
        ),
        ("llama", {"num_attention_heads": 2**31 - 1}, r"`num_attention_heads` is .* 65536 at most"),
        ("llama", {"rope_theta": 1e300}, r"`rope_theta` is 1e\+300: must be a finite number"),
        ("qwen2_moe", {"mlp_only_layers": [0] * 99}, r"`mlp_only_layers` .* more layers than"),
        ("mistral", {"layer_types": ["full_attention"] * 3}, r"mistral layers are all sliding"),
        ("qwen2", {"layer_types": ["full_attention"]}, r"`layer_types` .* for 3 layers"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, r"no sliding_window is in use"),
        ("qwen2", {"max_window_layers": "x"}, r"`max_window_layers` is 'x'"),
    ],
)
def test_values_that_cannot_be_used_are_named(
    model_type: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_hf(random_config(model_type, **keys))


def test_a_long_value_does_not_flood_the_message() -> None:
    with pytest.raises(ModelLoadError) as caught:
        ModelConfig.from_hf(random_config("llama", hidden_act="x" * 1000))
    assert len(str(caught.value)) < 300


def test_it_is_no_encoder_decoder() -> None:
    assert not ModelConfig.from_hf({"model_type": "llama"}).is_encoder_decoder
