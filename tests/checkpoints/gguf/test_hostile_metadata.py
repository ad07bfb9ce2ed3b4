"""Metadata of architectures with values of their own: what is not as it should be is named."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

import asyncgen
from asyncgen.errors import ModelLoadError
from tests.checkpoints.gguf.making import read_folder, write_gguf
from tests.checkpoints.gguf.test_families import OVERRIDES, SWITCHED, logits
from tests.families.arch.families import make


@cache
def _read(family: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with TemporaryDirectory() as folder:
        make(family, Path(folder), **OVERRIDES.get(family, {}))
        _, metadata, tensors = read_folder(Path(folder))
    return metadata, tensors


CASES = [
    ("gemma4_text", "attention.sliding_window_pattern", 3.5),
    ("gemma4_text", "attention.sliding_window_pattern", [True] * 3),
    ("gemma4_text", "attention.head_count_kv", [2, 2, 1, 1, 2, 1]),
    ("gemma4_text", "attention.head_count_kv", [float("nan")] * 6),
    ("gemma4_text", "attention.head_count_kv", "two"),
    ("gemma4_text", "feed_forward_length", [48, 48, 48, 48, 49, 96]),
    ("gemma4_text", "feed_forward_length", [-1.0] * 6),
    ("gemma4_text", "feed_forward_length", 2**31),
    ("gemma4_text", "attention.shared_kv_layers", 2**31),
    ("gemma4_text", "rope.scaling.type", "yarn"),
    ("gemma4_text", "block_count", 2**31 - 1),
    ("gemma3n_text", "activation_sparsity_scale", [float("nan")] * 6),
    ("gemma3n_text", "activation_sparsity_scale", [float("inf")] * 6),
    ("gemma3n_text", "activation_sparsity_scale", "none"),
    ("gemma3n_text", "altup.num_inputs", 10**6),
    ("gemma3n_text", "embedding_length_per_layer_input", 2**31),
    ("llama4_text", "interleave_moe_layer_step", 0),
    ("llama4_text", "expert_count", 2**31 - 1),
    ("llama4_text", "attention.sliding_window", "all"),
    ("mimo_v2_flash", "attention.head_count_kv", [1, 2, 2, 1]),
    ("mimo_v2_flash", "attention.value_length", 2**20),
    ("mimo_v2_flash", "attention.value_scale", "half"),
    ("mimo_v2_flash", "rope.freq_base_swa", float("inf")),
    ("kimi_linear", "attention.key_length_mla", 4),
    ("kimi_linear", "kda.head_dim", 2**30),
    ("kimi_linear", "attention.head_count_kv", [1, 0]),
    ("kimi_linear", "ssm.conv_kernel", 10**6),
    ("minicpm3", "attention.key_length", 3),
    ("minicpm3", "attention.q_lora_rank", "twelve"),
    ("mpt", "attention.max_alibi_bias", 0.0),
    ("mpt", "attention.clamp_kqv", 6.0),
    ("apertus", ".xielu.alpha_p", [float("inf")] * 4),
    ("apertus", ".xielu.beta", [0.5]),
    ("apertus", ".xielu.eps", "small"),
    ("dbrx", "attention.clamp_kqv", float("nan")),
    ("apertus", "rope.freq_base", 0.0),
    ("apertus", "rope.freq_base", -1.0),
    ("apertus", "rope.freq_base", "x"),
    ("gemma4_text", "rope.freq_base", [-1.0] * 6),
    ("gemma4_text", "attention.sliding_window", 0),
    ("gemma3n_text", "attention.sliding_window", 0),
    ("mimo_v2_flash", "attention.sliding_window", 0),
    ("afmoe", "expert_gating_func", 1),
    ("kimi_linear", "expert_gating_func", 1),
    ("llama4_text", "expert_gating_func", 3),
    ("mimo_v2_flash", "expert_gating_func", 1),
]


@pytest.mark.parametrize(("family", "key", "value"), CASES)
def test_wrong_metadata_is_refused_by_key(
    family: str, key: str, value: Any, tmp_path: Path
) -> None:
    metadata, tensors = _read(family)
    place = key[1:] if key.startswith(".") else f"{metadata['general.architecture']}.{key}"
    file = write_gguf(tmp_path / "bad.gguf", {**metadata, place: value}, tensors)
    with pytest.raises(ModelLoadError) as caught:
        asyncgen.load_model(file)
    assert re.search(r"`[a-z0-9_.-]+` is ", str(caught.value))


def _refused(
    file: Path, metadata: dict[str, Any], tensors: dict[str, np.ndarray], match: str
) -> None:
    with pytest.raises(ModelLoadError, match=match):
        asyncgen.load_model(write_gguf(file, metadata, tensors))


@pytest.mark.parametrize("family", ["gemma4_text", "gemma3n_text", "mimo_v2_flash", "embedding"])
def test_a_window_that_is_missing_is_named(family: str, tmp_path: Path) -> None:
    metadata, tensors = _read("gemma3_text" if family == "embedding" else family)
    if family == "embedding":
        metadata = {
            key.replace("gemma3.", "gemma-embedding."): value for key, value in metadata.items()
        }
        metadata["general.architecture"] = "gemma-embedding"
    name = metadata["general.architecture"]
    other = {key: value for key, value in metadata.items() if not key.endswith(".sliding_window")}
    assert other != metadata
    _refused(tmp_path / "bad.gguf", other, tensors, rf"`{name}\.attention\.sliding_window` is None")


def test_experts_of_nemotron_3_are_chosen_by_a_sigmoid(tmp_path: Path) -> None:
    make("nemotron_h", tmp_path, **SWITCHED["nemotron_h"])
    _, metadata, tensors = read_folder(tmp_path)
    key = "nemotron_h_moe.expert_gating_func"
    assert metadata[key] == 2
    _refused(tmp_path / "bad.gguf", {**metadata, key: 1}, tensors, f"`{key}` is 1: supported is 2")


def test_a_trinity_without_a_window_sees_all(tmp_path: Path) -> None:
    """As in llama.cpp."""
    metadata, tensors = _read("afmoe")
    far = {**metadata, "afmoe.attention.sliding_window": 1000}
    none = {key: value for key, value in far.items() if not key.endswith(".sliding_window")}
    ours, theirs = (
        asyncgen.load_model(write_gguf(tmp_path / f"{number}.gguf", each, tensors))
        for number, each in enumerate((none, far))
    )
    assert torch.equal(logits(ours), logits(theirs))


@pytest.mark.parametrize("rank", [0, None])
def test_a_rank_of_queries_that_is_not_the_tensors_is_refused(
    rank: int | None, tmp_path: Path
) -> None:
    metadata, tensors = _read("youtu")
    key = "deepseek2.attention.q_lora_rank"
    other = {name: value for name, value in metadata.items() if name != key}
    other |= {} if rank is None else {key: rank}
    _refused(tmp_path / "bad.gguf", other, tensors, r"needs 1, and not blk\.0\.attn_q_a\.weight")


@pytest.mark.parametrize(
    ("family", "part", "target"),
    [
        ("youtu", "attn_q_a", "latents"),
        ("minicpm3", "attn_q_a", "latents"),
        ("gemma3n_text", "attn_q", "qkv"),
        ("gemma4_text", "attn_q", "qkv"),
        ("gemma3n_text", "ffn_gate", "gate_up"),
        ("gemma4_text", "ffn_gate", "gate_up"),
    ],
)
def test_parts_that_no_layer_has_are_missed(
    family: str, part: str, target: str, tmp_path: Path
) -> None:
    metadata, tensors = _read(family)
    other = {name: tensor for name, tensor in tensors.items() if f".{part}." not in name}
    _refused(tmp_path / "bad.gguf", metadata, other, rf"layers\.0\.(qkv\.)?{target}\.weight needs")


def test_a_rank_of_queries_that_kimi_linear_does_not_have_is_refused(tmp_path: Path) -> None:
    metadata, tensors = _read("kimi_linear")
    other = {**metadata, "kimi-linear.attention.q_lora_rank": 3}
    _refused(tmp_path / "bad.gguf", other, tensors, r"layers\.1\.qkv\.latents\.weight needs 2")


@pytest.mark.parametrize("factors", ["freqs", "factors_long", "factors_short"])
@pytest.mark.parametrize("value", [np.inf, 0.0, -1.0, np.nan])
def test_divisors_of_a_rope_are_numbers_above_0(factors: str, value: float, tmp_path: Path) -> None:
    metadata, tensors = _read("apertus")
    names = ["freqs"] if factors == "freqs" else ["factors_long", "factors_short"]
    more = {f"rope_{name}.weight": np.ones(6, np.float32) for name in names}
    more[f"rope_{factors}.weight"][-1] = value
    _refused(tmp_path / "bad.gguf", metadata, {**tensors, **more}, f"rope_{factors}.*above 0")


@pytest.mark.parametrize(("there", "missing"), [("long", "short"), ("short", "long")])
def test_factors_of_a_rope_are_two_tensors(there: str, missing: str, tmp_path: Path) -> None:
    metadata, tensors = _read("llama4_text")
    other = {**tensors, f"rope_factors_{there}.weight": np.ones(6, np.float32)}
    _refused(tmp_path / "bad.gguf", metadata, other, f"no tensor rope_factors_{missing}")


@pytest.mark.parametrize("divisors", [[1.0], [1.0, 1e30], [1.0] * 4 + [1e30] * 500])
def test_a_rope_of_gemma_4_has_a_divisor_a_pair(divisors: list[float], tmp_path: Path) -> None:
    metadata, tensors = _read("gemma4_text")
    other = {**tensors, "rope_freqs.weight": np.array(divisors, np.float32)}
    _refused(tmp_path / "bad.gguf", metadata, other, "rope_freqs.*expected 6")


@pytest.mark.parametrize("family", ["mpt", "afmoe", "llama4_text", "minicpm3"])
def test_layers_after_the_last_are_unexpected(family: str, tmp_path: Path) -> None:
    metadata, tensors = _read(family)
    key = f"{metadata['general.architecture']}.block_count"
    layers = metadata[key] - 1
    _refused(
        tmp_path / "bad.gguf", {**metadata, key: layers}, tensors, rf"unexpected: blk\.{layers}\."
    )


def test_layers_that_guess_ahead_are_left_alone(tmp_path: Path) -> None:
    metadata, tensors = _read("minicpm3")
    file = write_gguf(
        tmp_path / "x.gguf", {**metadata, "minicpm3.nextn_predict_layers": 1}, tensors
    )
    layers = metadata["minicpm3.block_count"] - 1
    assert asyncgen.load_model(file).config.num_hidden_layers == layers


@pytest.mark.parametrize(
    ("family", "name"),
    [("gemma3n_text", "altup_proj.weight"), ("llama4_text", "blk.1.ffn_up_exps.weight")],
)
def test_a_tensor_of_too_many_parts_is_not_taken_apart(
    family: str, name: str, tmp_path: Path
) -> None:
    metadata, tensors = _read(family)
    other = {**tensors, name: np.zeros((100_000, 1, 1), np.float32)}
    _refused(tmp_path / "bad.gguf", metadata, other, f"1 unexpected: {name}")


def test_product_after_the_mean_stays_within_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata, tensors = _read("mpt")
    rows = 16 * tensors["token_embd.weight"].shape[1]
    columns = tensors["token_embd.weight"].shape[1]
    large = {**tensors, "dense_2.weight": np.zeros((rows + 1, columns), np.float32)}
    _refused(tmp_path / "large.gguf", metadata, large, rf"dense_2\.weight has {rows + 1} rows")
    most = {**tensors, "dense_2.weight": np.zeros((rows, columns), np.float32)}
    file = write_gguf(tmp_path / "most.gguf", metadata, most)
    asyncgen.load_model(file)
    need = 4 * rows * columns
    monkeypatch.setattr(
        "asyncgen.checkpoints.gguf.embedding_defaults.memory_to_load", lambda device: need - 1
    )
    with pytest.raises(ModelLoadError, match=r"dense_2\.weight needs .* GB of memory"):
        asyncgen.load_model(file)


@pytest.mark.parametrize("divisors", [[0.0] * 6, [1.0, 2.0] * 3, [float("nan")] * 6])
def test_a_rope_of_gemma_4_that_is_stretched_is_refused(
    divisors: list[float], tmp_path: Path
) -> None:
    metadata, tensors = _read("gemma4_text")
    other = {**tensors, "rope_freqs.weight": np.array(divisors, np.float32)}
    file = write_gguf(tmp_path / "bad.gguf", metadata, other)
    with pytest.raises(ModelLoadError, match="rope_freqs"):
        asyncgen.load_model(file)


def test_a_missing_number_of_an_activation_is_named(tmp_path: Path) -> None:
    metadata, tensors = _read("apertus")
    del metadata["xielu.eps"]
    file = write_gguf(tmp_path / "bad.gguf", metadata, tensors)
    with pytest.raises(ModelLoadError, match=r"xielu\.eps"):
        asyncgen.load_model(file)
