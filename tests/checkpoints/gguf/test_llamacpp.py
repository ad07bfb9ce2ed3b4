"""The same GGUF file in llama.cpp and here; llama.cpp is where `.ci/peers` puts it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import asyncgen
from asyncgen_apps.bench.peers.contenders import CONTENDERS, environments_folder
from tests.checkpoints.gguf.making import read_folder, write_gguf
from tests.checkpoints.gguf.test_families import SWITCHED
from tests.families.arch.families import make

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("llamacpp_logits.py")
_SAME_SIZE = {"linear_value_head_dim": 8}
_WINDOWED = ["sliding_attention"] * 3 + ["full_attention"]
FLOATS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mixtral": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {},
    "gemma2": {"query_pre_attn_scalar": 12},
    "phi3": {},
    "granite": {},
    "exaone4": {"num_hidden_layers": 64, "layer_types": _WINDOWED * 16},
    "mamba": {},
    "mamba2": {},
    "falcon_h1": {},
    "granitemoehybrid": {},
    "jamba": {},
    "nemotron_h": {
        "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"],
        "moe_latent_size": 12,
    },
    "lfm2": {},
    "lfm2_moe": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
    "ernie4_5_moe": {},
    "exaone_moe": {},
    "hunyuan_v1_moe": {},
    "minimax_m2": {},
    "afmoe": {"mup_enabled": True},
    "apertus": {},
    "dbrx": {},
    "gemma3n_text": {
        "num_hidden_layers": 20,
        "num_kv_shared_layers": 0,
        "layer_types": _WINDOWED * 5,
        "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 10,
        "final_logit_softcapping": 30.0,
        "hidden_size_per_layer_input": 256,
        "laurel_rank": 64,
        "intermediate_size": 4096,
    },
    "gemma4_text": SWITCHED["gemma4_text"],
    "glm4_moe": {},
    "kimi_linear": {"linear_num_heads": 4, "linear_head_dim": 8, "v_head_dim": 8},
    "llama4_text": {"attention_chunk_size": 8192, "floor_scale": 8192},
    "mimo_v2_flash": {},
    "minicpm3": {"dim_model_base": 256, "v_head_dim": 8},
    "mpt": {},
    "youtu": {},
    "qwen3_next": _SAME_SIZE,
    "qwen3_5_text": {**_SAME_SIZE, "linear_num_value_heads": 6},
    "qwen3_5_moe_text": _SAME_SIZE,
}
"""Families, and what llama.cpp wants of them."""

ROUNDED = {
    **{"gemma2": 5e-3, "gemma3n_text": 5e-2, "gemma4_text": 1e-2, "mpt": 5e-3},
    "kimi_linear": 5e-3,
}
"""llama.cpp looks GELU up in a table of float16, divides the spread of Gemma 3n's gates by one less
than there are, and adds another epsilon to Kimi's keys."""

PACKED = ("llama", "qwen3", "gemma2")
TENSOR_TYPES = ("F16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")
TEXTS, LENGTH = 64, 20


def python() -> str:
    found = CONTENDERS["llamacpp"].python(environments_folder())
    if found is None:
        pytest.skip("llama.cpp is not installed: .ci/peers llamacpp")
    return found


def run(*arguments: object) -> None:
    command = [python(), str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def theirs(file: Path, ids: torch.Tensor) -> torch.Tensor:
    places = file.with_suffix(".ids.npy"), file.with_suffix(".logits.npy")
    np.save(places[0], ids.numpy().astype(np.int32))
    run("logits", file, *places)
    return torch.from_numpy(np.load(places[1]))


@torch.no_grad()
def ours(model: Any, ids: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=ids, use_cache=False, return_dict=True).logits
    return found.float()


def written(folder: Path, family: str, settings: Mapping[str, Any]) -> tuple[Any, Path]:
    """The reference's model, and a file of its weights that llama.cpp opens."""
    model = make(family, folder / "hf", **settings)
    _, metadata, tensors = read_folder(folder / "hf")
    name = metadata["general.architecture"]
    beside = {
        "tokenizer.ggml.model": "none",
        f"{name}.vocab_size": model.config.vocab_size,
        f"{name}.context_length": 512,
    }
    if f"{name}.attention.key_length" in metadata and name != "minicpm3":
        size = metadata[f"{name}.attention.key_length"]
        beside[f"{name}.attention.value_length"] = size
    return model, write_gguf(folder / "floats.gguf", {**beside, **metadata}, tensors)


@pytest.mark.parametrize("family", FLOATS)
def test_floats_are_those_of_llamacpp(family: str, tmp_path: Path) -> None:
    _, file = written(tmp_path, family, FLOATS[family])
    ids = torch.arange(1, 41).view(2, 20) % 90 + 3
    found = ours(asyncgen.load_model(file, dtype="float32"), ids)
    expected = theirs(file, ids)[..., : found.shape[-1]]
    error = ROUNDED.get(family, 1e-4)
    torch.testing.assert_close(found, expected, atol=error, rtol=0)


@pytest.fixture(scope="module", params=PACKED)
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder of a family's files of every type, texts, and float32's logits of them."""
    folder = tmp_path_factory.mktemp(request.param)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 512, "head_dim": 64}
    scalar = {"query_pre_attn_scalar": 64} if request.param == "gemma2" else {}
    model, file = written(folder, request.param, {**sizes, **scalar, "num_hidden_layers": 3})
    run("pack", file, ",".join(TENSOR_TYPES), folder)
    ids = torch.randint(3, 500, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(0))
    return folder, ids, ours(model, ids)


@pytest.mark.parametrize("kind", TENSOR_TYPES)
def test_packed_weights_are_no_further_from_float32(packed: Any, kind: str) -> None:
    folder, ids, exact = packed
    file = folder / f"{kind}.gguf"
    found = ours(asyncgen.load_model(file, dtype="float32"), ids)
    peer = theirs(file, ids)
    own, other = ((one - exact).abs() for one in (found, peer))
    assert own.mean() <= other.mean()
    # Where float32 is surer than both err, both say what it says.
    best = exact.topk(2, dim=-1).values
    margin = best[..., 0] - best[..., 1]
    is_sure = margin > own.amax(-1) + other.amax(-1)
    assert is_sure.any() or kind.startswith("Q4")
    for one in (found, peer):
        assert torch.equal(one.argmax(-1)[is_sure], exact.argmax(-1)[is_sure])


@pytest.mark.parametrize("kind", [kind for kind in TENSOR_TYPES if kind != "F16"])
def test_packed_weights_in_bfloat16_add_no_more_than_rounding(packed: Any, kind: str) -> None:
    folder, ids, exact = packed
    half, plain, peer = (
        ours(asyncgen.load_model(folder / f"{kind}.gguf", dtype="bfloat16"), ids),
        ours(asyncgen.load_model(folder / "F16.gguf", dtype="bfloat16"), ids),
        theirs(folder / f"{kind}.gguf", ids),
    )
    own, rounding, other = ((one - exact).abs().mean() for one in (half, plain, peer))
    # Errors that have nothing to do with each other add up by their squares.
    assert own <= 1.01 * torch.hypot(rounding, other)
