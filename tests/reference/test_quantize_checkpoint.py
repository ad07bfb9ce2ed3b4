"""Checkpoints that are packed into a new folder, and what is said of their errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

import asyncgen
from asyncgen.checkpoints.packed.quantise import Packing, quantise
from asyncgen.errors import InvalidRequestError, ModelLoadError
from tests.doubles.checkpoints import save_checkpoint
from tests.families.arch.families import make

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("packing", ["int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "mixtral"])
def test_a_packed_folder_holds_the_packed_weights(
    tmp_path: Path, family: str, packing: Packing
) -> None:
    pytest.importorskip("transformers")
    source, folder = tmp_path / "source", tmp_path / "packed"
    source.mkdir()
    make(family, source, hidden_size=64, intermediate_size=72)
    report = asyncgen.quantize_checkpoint(source, folder, to=packing)
    asyncgen.load_model(folder, dtype="float32").save_pretrained(tmp_path / "saved")
    stored, found = (
        load_file(place / "model.safetensors") for place in (source, tmp_path / "saved")
    )
    errors = {name: float((found[name] - tensor).abs().max()) for name, tensor in stored.items()}
    assert max(errors.values()) == pytest.approx(report.largest_error)
    assert errors["model.embed_tokens.weight"] == 0
    name = "model.layers.1.self_attn.o_proj.weight"
    expected = quantise(stored[name], packing, scale_dtype=torch.float32).dequantise()
    assert torch.equal(found[name], expected)
    assert 0 < report.mean_error < report.largest_error
    assert report.bytes_after < report.bytes_before


@pytest.mark.parametrize("packing", ["int8", "int4"])
@pytest.mark.parametrize("hidden, intermediate", [(32, 48), (24, 36), (8, 3)])
def test_rows_of_one_group_are_packed(
    tmp_path: Path, packing: Packing, hidden: int, intermediate: int
) -> None:
    sizes: dict[str, Any] = {"hidden_size": hidden, "intermediate_size": intermediate}
    save_checkpoint(tmp_path / "source", **sizes)
    asyncgen.quantize_checkpoint(tmp_path / "source", tmp_path / "packed", to=packing)
    asyncgen.load_model(tmp_path / "packed", dtype="float32").save_pretrained(tmp_path / "saved")
    stored, found = (load_file(tmp_path / n / "model.safetensors") for n in ("source", "saved"))
    for part in ("self_attn.k_proj", "mlp.up_proj", "mlp.down_proj"):
        name = f"model.layers.0.{part}.weight"
        expected = quantise(stored[name], packing, scale_dtype=torch.float32).dequantise()
        assert torch.equal(found[name], expected), name


def test_report_states_the_loss_of_packing(tmp_path: Path) -> None:
    reports = [
        asyncgen.quantize_checkpoint("demo", tmp_path / packing, to=packing)
        for packing in ("int8", "int4")
    ]
    eight, four = reports
    assert eight.relative_error < 0.01 < four.relative_error < 0.1
    assert four.bytes_after < eight.bytes_after < 0.4 * eight.bytes_before
    with (tmp_path / "int4" / "model.safetensors").open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    assert header.pop("__metadata__") == {"format": "pt"}
    for place in header.values():  # each lies at a multiple of the width of its numbers
        assert place["data_offsets"][0] * 8 % int(place["dtype"].strip("BFIU")) == 0
    settings = json.loads((tmp_path / "int4" / "config.json").read_text())["quantization_config"]
    assert settings["ignore"] == ["lm_head", "model.embed_tokens"]
    assert (tmp_path / "int4" / "tokenizer.json").is_file()


def test_wrong_arguments_are_refused_by_name(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for name, value in (("to", "int3"), ("folder", str(tmp_path))):
        (tmp_path / "something").touch()
        with pytest.raises(InvalidRequestError, match=f"`{name}`"):
            asyncgen.quantize_checkpoint(
                "demo",
                tmp_path if name == "folder" else tmp_path / "new",
                to=value if name == "to" else "int8",  # type: ignore[arg-type]
            )
    asyncgen.quantize_checkpoint("demo", tmp_path / "packed", to="int8")
    with pytest.raises(ModelLoadError, match="packed already"):
        asyncgen.quantize_checkpoint(tmp_path / "packed", tmp_path / "again")
    gpt2 = tmp_path / "gpt2"
    gpt2.mkdir()
    make("gpt2", gpt2)
    with pytest.raises(ModelLoadError, match="no matrices that can be packed"):
        asyncgen.quantize_checkpoint(gpt2, tmp_path / "new")
