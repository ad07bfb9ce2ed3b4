"""Checkpoints of 16 bits at float32: kept as they are stored, computed as if converted before."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from asyncgen import native
from asyncgen.errors import ModelLoadError
from asyncgen.llm.fingerprint import fingerprint_of
from asyncgen.models.kernels import native_linear
from asyncgen.reference.load_model import PreTrainedModel, load_model
from tests.doubles.checkpoints import save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

own_kernels = pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "llama-tied": {"tie_word_embeddings": True},
    "qwen2-tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 16, "hidden_act": "gelu"},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
             "tie_word_embeddings": True},
    "t5": {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2,
           "num_heads": 4, "decoder_start_token_id": 0, "pad_token_id": 0},
}  # fmt: skip
STORED = [torch.bfloat16, torch.float16]
CASES = list(zip(FAMILIES, STORED * 3, strict=True))
IDS = torch.tensor([[3, 17, 25, 40, 8, 91, 5], [60, 4, 33, 7, 7, 12, 80]])


def pair(
    folder: Path, family: str, stored: torch.dtype, **config: Any
) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model of a file of 16 bits at float32, and one of the same numbers in a float32 file."""
    options = {**FAMILIES[family], **config}
    tensors = save_checkpoint(folder / "short", stored=stored, **options)
    save_checkpoint(folder / "wide", **options)
    wide = {name: tensor.float() for name, tensor in tensors.items()}
    save_file(wide, folder / "wide" / "model.safetensors", metadata={"format": "pt"})
    return load(folder / "short"), load(folder / "wide")


def load(folder: Path) -> PreTrainedModel:
    model = load_model(folder, device="cpu", dtype="float32")
    assert model.dtype is torch.float32
    return model


def logits(model: PreTrainedModel, ids: torch.Tensor = IDS) -> torch.Tensor:
    decoder = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    found: torch.Tensor = model(input_ids=ids, **decoder).logits
    assert found.dtype is model.dtype
    return found


def kept(model: PreTrainedModel) -> int:
    """Bytes of tables, norms, biases and what products compute with."""
    total = sum(parameter.nbytes for parameter in model.core.parameters())
    for module in model.core.modules():
        kernel = getattr(module, "kernel", None)
        total += 0 if kernel is None else kernel.dense().nbytes
    return total


@own_kernels
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_tokens_are_those_of_float32(
    family: str, stored: torch.dtype, tmp_path: Path
) -> None:
    model, wide = pair(tmp_path, family, stored)
    for ids in (IDS, IDS[:, :1], IDS.repeat(3, 5)):
        assert torch.equal(logits(model, ids), logits(wide, ids))
    made: list[Any] = [
        one.generate(IDS, max_new_tokens=9, eos_token_id=None, pad_token_id=0)
        for one in (model, wide)
    ]
    assert torch.equal(*made)
    twin = copy.deepcopy(model)
    assert torch.equal(logits(twin), logits(wide)) and kept(twin) == kept(model)
    assert fingerprint_of(model, None) == fingerprint_of(wide, None)


@own_kernels
@pytest.mark.parametrize(("family", "stored"), CASES)
def test_widened_model_is_saved_in_float32(
    family: str, stored: torch.dtype, tmp_path: Path
) -> None:
    model, wide = pair(tmp_path, family, stored, dtype="bfloat16")
    model.save_pretrained(tmp_path / "saved")
    found = load_file(tmp_path / "saved" / "model.safetensors")
    expected = load_file(tmp_path / "wide" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["dtype"] == "float32"
    assert torch.equal(logits(load(tmp_path / "saved")), logits(wide))
    state, converted = model.state_dict(), wide.state_dict()
    assert state.keys() == converted.keys()
    assert all(torch.equal(state[name], converted[name]) for name in converted)
    model.load_state_dict(state)
    assert torch.equal(logits(model), logits(wide))


@own_kernels
@pytest.mark.parametrize(("family", "stored"), CASES)
def test_whatever_is_done_to_it_it_stays_equal(
    family: str, stored: torch.dtype, tmp_path: Path
) -> None:
    changes: tuple[Callable[[Any], object], ...] = (
        lambda model: model.bfloat16(),
        lambda model: model.double(),
        lambda model: model.bfloat16().float(),
        lambda model: model.core.to("cpu"),
        lambda model: model.resize_token_embeddings(104),
        lambda model: model.get_input_embeddings().weight.data[5:9].mul_(1.0001),
        lambda model: model.get_output_embeddings().weight.data[5:9].mul_(1.0001),
    )
    for change in changes:
        models = pair(tmp_path, family, stored)
        for model in models:
            change(model)
        found, expected = map(logits, models)
        assert found.dtype is expected.dtype is models[0].dtype is models[1].dtype
        assert torch.equal(found, expected)


@own_kernels
@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("family", ["llama", "llama-tied", "gpt2"])
def test_half_the_memory(
    family: str, stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty(shape, dtype=dtype)
        asked.append(made.nbytes)
        return made

    monkeypatch.setattr(native_linear, "empty_weight", empty)
    options = {} if family == "gpt2" else {"hidden_size": 64, "intermediate_size": 96}
    model, wide = pair(tmp_path, family, stored, **options)
    half = len(asked) // 2
    assert sum(asked[:half]) * 2 == sum(asked[half:])
    vectors = sum(one.nbytes for one in model.core.parameters() if one.dim() == 1)
    tables = sum(one.nbytes for one in wide.core.parameters() if one.dim() == 2)
    assert 2 * (kept(model) - vectors) == kept(wide) - vectors
    assert tables > 0


@own_kernels
def test_model_that_fits_in_16_bits_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = save_checkpoint(tmp_path, stored=torch.bfloat16)
    need = sum(tensor.nbytes * (2 if tensor.dim() == 1 else 1) for tensor in tensors.values())
    monkeypatch.setattr("asyncgen.checkpoints.weight_loading.memory_to_load", lambda device: need)
    load(tmp_path)
    monkeypatch.setattr(
        "asyncgen.checkpoints.weight_loading.memory_to_load", lambda device: need - 1
    )
    with pytest.raises(ModelLoadError, match=r"in float32, .* on cpu: use another `device`"):
        load(tmp_path)


@own_kernels
def test_parts_of_two_dtypes_are_converted(tmp_path: Path) -> None:
    """Queries in one and keys in another make one matrix; others stay as they are stored."""
    tensors = save_checkpoint(tmp_path, stored=torch.bfloat16)
    name = "model.layers.0.self_attn.k_proj.weight"
    save_file({**tensors, name: tensors[name].half()}, tmp_path / "model.safetensors")
    core = load(tmp_path).core
    layers: Any = core.layers
    found = [layer.qkv.kernel.dense().dtype for layer in layers]
    assert found == [torch.float32, torch.bfloat16]
    parts = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    expected = torch.cat([tensors[part].float() for part in parts])
    assert torch.equal(layers[0].qkv.dense_weight()[:32], expected[:32])


@pytest.mark.parametrize("stored", STORED)
def test_other_kernels_have_the_weights_converted(
    stored: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "kernels", None)
    for family in ("llama", "gpt2"):
        model, wide = pair(tmp_path, family, stored)
        assert torch.equal(logits(model), logits(wide))
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert kept(model) == kept(wide)
