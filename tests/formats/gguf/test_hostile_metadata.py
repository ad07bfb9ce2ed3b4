"""Metadata of architectures with values of their own: what is not as it should be is named."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import asyncgen
from asyncgen.errors import ModelLoadError
from tests.formats.gguf.making import read_folder, write_gguf
from tests.formats.gguf.test_families import OVERRIDES
from tests.models.arch.families import make


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
]


@pytest.mark.parametrize(("family", "key", "value"), CASES)
def test_what_is_wrong_is_named(family: str, key: str, value: Any, tmp_path: Path) -> None:
    metadata, tensors = _read(family)
    place = key[1:] if key.startswith(".") else f"{metadata['general.architecture']}.{key}"
    file = write_gguf(tmp_path / "bad.gguf", {**metadata, place: value}, tensors)
    with pytest.raises(ModelLoadError) as caught:
        asyncgen.load_model(file)
    assert re.search(r"`[a-z0-9_.-]+` is ", str(caught.value))


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
