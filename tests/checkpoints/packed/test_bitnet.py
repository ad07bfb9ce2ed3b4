"""BitNet's files: numbers of three values, four to a byte, with one scale a matrix."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import asyncgen
from asyncgen.errors import ModelLoadError
from tests.cases import for_each
from tests.families.arch.families import make

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.arange(3, 13).view(1, 10)
PACKED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write(family: str, folder: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """Save a packed checkpoint; return the weights that it stands for."""
    pack = pytest.importorskip("transformers.integrations.bitnet").pack_weights
    make(family, folder)
    tensors = load_file(folder / "model.safetensors")
    dense, stored = dict(tensors), dict(tensors)
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        if name.split(".")[-2] in PACKED:
            numbers = torch.randint(-1, 2, tensor.shape, generator=generator)
            scale = torch.rand(1, generator=generator) + 0.1
            is_divided = settings.get("linear_class") != "autobitlinear"
            dense[name] = numbers / scale if is_divided else numbers * scale
            stored[name] = pack(numbers.clone())
            stored[f"{name}_scale"] = scale
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "bitnet", **settings}
    path.write_text(json.dumps(config), encoding="utf-8")
    return dense


@for_each(
    "family, settings",
    [
        ("bitnet", {"linear_class": "autobitlinear", "quantization_mode": "offline"}),
        ("llama", {"linear_class": "bitlinear", "modules_to_not_convert": ["lm_head"]}),
        ("llama", {"use_rms_norm": False, "rms_norm_eps": 1e-6, "modules_to_not_convert": None}),
    ],
)
def test_packed_numbers_are_those_of_the_reference(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / f"{family}{len(settings)}"
    dense = write(family, folder, **settings)
    model = asyncgen.load_model(folder, dtype="float32")
    model.save_pretrained(folder / "dense")
    saved = load_file(folder / "dense" / "model.safetensors")
    for name, weight in dense.items():
        if name.split(".")[-2] in PACKED:
            torch.testing.assert_close(saved[name], weight, atol=0, rtol=1e-6)
    plain = asyncgen.load_model(folder / "dense", dtype="float32")
    found, expected = model(IDS).logits, plain(IDS).logits
    # Packed products round their inputs to 8 bits, as BitNet's own do.
    assert (found - expected).norm() < 0.05 * expected.norm()


@for_each(
    "settings, message",
    [
        ({"linear_class": "autobitlinear", "quantization_mode": "online"}, "quantization_mode"),
        ({"use_rms_norm": True}, "use_rms_norm"),
        ({"linear_class": "other"}, "linear_class"),
        ({"bits": 2}, "`bits` is 2; its meaning is not known"),
    ],
)
def test_other_settings_are_refused_by_name(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / message.strip("`")[:8]
    write("bitnet", folder, **settings)
    with pytest.raises(ModelLoadError, match=message):
        asyncgen.load_model(folder)


def test_byte_with_a_fourth_value_is_an_error(tmp_path: Path) -> None:
    write("bitnet", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.down_proj.weight"][0, 0] = 255
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match="numbers have three values"):
        asyncgen.load_model(tmp_path)
