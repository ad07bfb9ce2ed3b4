"""Peculiarities of models whose layers partly attend and partly keep states."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import asyncgen
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.families.config import ModelConfig
from tests.families.arch.families import HYBRIDS, make
from tests.families.arch.test_families import ROWS, one_thread

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("transformers")
__all__ = ["one_thread"]

IDS = torch.tensor(ROWS[:1])


def test_the_text_model_of_one_that_sees_is_loaded(tmp_path: Path) -> None:
    theirs = make("qwen3_5_text", tmp_path)
    with torch.no_grad():
        expected = theirs(IDS).logits
    path = tmp_path / "config.json"
    text = json.loads(path.read_text(encoding="utf-8"))
    # As the maker's files have it: three axes of a picture, which are one in a text.
    text["rope_parameters"] |= {"mrope_interleaved": True, "mrope_section": [1, 0, 0]}
    text |= {"full_attention_interval": 4, "mtp_num_hidden_layers": 1, "attn_output_gate": True}
    path.write_text(json.dumps({"model_type": "qwen3_5", "text_config": text}), encoding="utf-8")
    tensors = load_file(tmp_path / "model.safetensors")
    names = {name: name.replace("model.", "model.language_model.", 1) for name in tensors}
    renamed = {names[name]: tensor for name, tensor in tensors.items()}
    renamed["model.visual.patch_embed.proj.weight"] = torch.zeros(2, 2)
    renamed["mtp.fc.weight"] = torch.zeros(2, 2)
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    torch.testing.assert_close(ours(IDS).logits, expected, atol=1e-4, rtol=1e-4)


def test_files_may_call_and_cut_what_they_have_as_their_makers_do(tmp_path: Path) -> None:
    for family, renamed in (
        ("kimi_linear", ("layers.0.block_sparse_moe.", "layers.0.mlp.")),
        ("olmo_hybrid", ("layers.3.feedforward_layer_norm", "layers.3.post_attention_layernorm")),
    ):
        theirs = make(family, tmp_path)
        with torch.no_grad():
            expected = theirs(IDS).logits
        tensors = {
            name.replace(*renamed): tensor
            for name, tensor in load_file(tmp_path / "model.safetensors").items()
        }
        for name in [name for name in tensors if "q_conv1d" in name]:
            parts = [name.replace("q_conv1d", f"{part}_conv1d") for part in "qkv"]
            sizes = [len(tensors[each.replace("conv1d", "proj")]) for each in parts]
            cut = torch.split(torch.cat([tensors[each] for each in parts]), sizes)
            tensors |= {each: part.contiguous() for each, part in zip(parts, cut, strict=True)}
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        ours = asyncgen.load_model(tmp_path, dtype="float32")
        torch.testing.assert_close(ours(IDS).logits, expected, atol=1e-4, rtol=1e-4)
        ours.save_pretrained(tmp_path / "again")
        again = type(theirs).from_pretrained(tmp_path / "again", dtype=torch.float32)
        with torch.no_grad():
            torch.testing.assert_close(again(IDS).logits, expected, atol=1e-4, rtol=1e-4)


def test_windows_that_are_not_the_whole_are_refused(tmp_path: Path) -> None:
    make("olmo_hybrid", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.linear_attn.k_conv1d.weight"
    save_file({**tensors, name: tensors[name][1:]}, tmp_path / "model.safetensors")
    with pytest.raises(ModelLoadError, match="k_conv1d.weight is "):
        asyncgen.load_model(tmp_path)


def test_kinds_of_layers_may_be_numbered_in_an_object() -> None:
    numbered = {"full_attn_layers": [2], "kda_layers": [1, 3], "head_dim": 16, "num_heads": 2}
    keys = {"num_hidden_layers": 3, "linear_attn_config": numbered}
    config = ModelConfig.from_hf({"model_type": "kimi_linear", **keys})
    assert (config.mixing, config.attending) == ((0, 2), (1,))
    assert config.layer_plans[0].mixer is not None
    assert config.layer_plans[0].mixer.shape == (2, 16, 16)


def test_a_cache_has_keys_and_states_where_layers_have_them(tmp_path: Path) -> None:
    make("qwen3_5_text", tmp_path)
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    cache = ours(IDS).past_key_values
    assert cache.get_seq_length() == IDS.shape[1]
    assert [len(cache[layer][0].shape) for layer in range(4)] == [3, 3, 3, 4]
    found = ours(IDS[:, :2], output_attentions=True)
    assert len(found.attentions) == 1
    with pytest.raises(InvalidRequestError, match="does not tell what it was"):
        cache.crop(2)
    with pytest.raises(InvalidRequestError, match="`past_key_values`"):
        ours(IDS, past_key_values=asyncgen.MambaCache(_mamba(), batch_size=1))


def _mamba() -> Any:
    return SimpleNamespace(num_hidden_layers=4, intermediate_size=8, state_size=2, conv_kernel=4)


@pytest.mark.parametrize("family", ["falcon_h1", "zamba2"])
def test_caches_of_fixed_shape_take_states_beside_attention(family: str, tmp_path: Path) -> None:
    make(family, tmp_path)
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    generate: Any = ours.generate
    expected = generate(IDS, **options)
    for name in ("static", "hybrid", "offloaded_static"):
        assert torch.equal(generate(IDS, cache_implementation=name, **options), expected)


@pytest.mark.parametrize("family", HYBRIDS)
def test_layers_are_called_what_they_are(family: str) -> None:
    config = ModelConfig.from_hf({"model_type": family})
    for layer, kind in enumerate(config.layer_types):
        assert (layer in config.mixing) == (kind in ("linear_attention", "hybrid"))
        attending = ("full_attention", "sliding_attention", "hybrid")
        assert (layer in config.attending) == (kind in attending)


@pytest.mark.parametrize(
    ("family", "keys", "message"),
    [
        ("qwen3_next", {"layer_types": ["full_attention"]}, "`layer_types`"),
        ("qwen3_next", {"linear_num_value_heads": 3}, "`linear_num_value_heads`"),
        ("qwen3_5_text", {"hidden_act": "gelu"}, "`hidden_act`"),
        ("bamba", {"attn_layer_indices": [99]}, "`attn_layer_indices`"),
        ("bamba", {"mamba_n_heads": 3}, "`mamba_n_heads`"),
        ("falcon_h1", {"ssm_multipliers": [1.0]}, "`ssm_multipliers`"),
        ("granitemoehybrid", {"position_embedding_type": "alibi"}, "`position_embedding_type`"),
        ("jamba", {"attn_layer_offset": 8}, "`attn_layer_offset`"),
        ("nemotron_h", {"layers_block_type": ["mamba", "rnn"]}, "`layers_block_type`"),
        ("nemotron_h", {"hybrid_override_pattern": "M-X"}, "`hybrid_override_pattern`"),
        ("nemotron_h", {"hybrid_override_pattern": "ME", "mlp_bias": True}, "`mlp_bias`"),
        ("nemotron_h", {"mlp_hidden_act": "tanh"}, "`mlp_hidden_act`"),
        ("nemotron_h", {"n_routed_experts": 6, "n_group": 4}, "`n_group`"),
        ("lfm2", {"full_attn_idxs": "all"}, "`full_attn_idxs`"),
        ("recurrent_gemma", {"block_types": ["attention", "mamba"]}, "`block_types`"),
        ("recurrent_gemma", {"lru_width": 33}, "`lru_width`"),
        ("minimax", {"hidden_act": "gelu"}, "`hidden_act`"),
        ("minimax", {"linear_attn_alpha_factor": "much"}, "`linear_attn_alpha_factor`"),
        ("kimi_linear", {"mla_use_nope": False}, "`mla_use_nope`"),
        ("kimi_linear", {"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ("kimi_linear", {"linear_attn_config": {"full_attn_layers": [0]}}, "full_attn_layers"),
        (
            "kimi_linear",
            {"linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2]}},
            "kda_layers",
        ),
        ("olmo_hybrid", {"linear_num_value_heads": 7}, "`linear_num_value_heads`"),
        ("zamba2", {"layers_block_type": ["mamba", "rnn"]}, "`layers_block_type`"),
        ("zamba2", {"num_hidden_layers": 12}, "`num_hidden_layers`"),
        ("zamba2", {"num_attention_heads": 48}, "`num_attention_heads`"),
        ("zamba2", {"n_mamba_heads": 7}, "`n_mamba_heads`"),
        ("zamba2", {"use_long_context": True}, "`use_long_context`"),
        (
            "zamba2",
            {"use_shared_attention_adapter": True, "num_key_value_heads": 4},
            "`num_key_value_heads`",
        ),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(
    family: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        ModelConfig.from_hf({"model_type": family, **keys})


def test_a_pattern_of_letters_is_read() -> None:
    config = ModelConfig.from_hf({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*E"})
    assert config.layer_types == (
        "linear_attention",
        "mlp",
        "linear_attention",
        "full_attention",
        "moe",
    )


@pytest.mark.parametrize("family", ["nemotron_h", "zamba2"])
@pytest.mark.parametrize("limit", [None, [0.31, 0.57]])
def test_time_steps_have_the_bounds_of_the_makers(
    family: str, limit: list[float] | None, tmp_path: Path
) -> None:
    """Bounds are ``time_step_limit``; the reference's prefill has ``time_step_min`` below, and its
    single tokens have none: its own answers differ from its own logits."""
    bounds: dict[str, Any] = {} if limit is None else {"time_step_limit": limit}
    theirs = make(family, tmp_path, time_step_min=0.4, **bounds)
    ours = asyncgen.load_model(tmp_path, dtype="float32")
    found = ours(IDS).logits
    with torch.no_grad():
        clamped = theirs(IDS).logits
    assert not torch.allclose(found, clamped, atol=1e-3)
    for module in theirs.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = tuple(limit or (0.0, float("inf")))
    with torch.no_grad():
        expected = theirs(IDS).logits
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        if limit is None:  # one token after another, which the reference does not bound
            out = theirs(IDS[:, :1], use_cache=True)
            for place in range(1, IDS.shape[1]):
                out = theirs(IDS[:, place : place + 1], past_key_values=out.past_key_values)
            torch.testing.assert_close(out.logits[:, -1], found[:, -1], atol=1e-4, rtol=1e-4)
