"""Test that the memory of packed weights is known before any is read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

import asyncgen
from asyncgen.checkpoints.gguf.gguf_file import open_gguf
from asyncgen.checkpoints.gguf.read_tensors import kept_as, read_packed
from asyncgen.checkpoints.weight_loading import check_memory
from asyncgen.errors import ModelLoadError
from asyncgen.models.kernels.native_packed import PackedLinearKernel, supports_packed
from asyncgen.native import PANEL
from tests.checkpoints.gguf.making import read_folder, write_gguf
from tests.checkpoints.gguf.test_block_formats import PACKED, random_blocks
from tests.checkpoints.packed.test_quantized_checkpoint import SCHEMES, write
from tests.families.arch.families import make

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch

    from asyncgen.checkpoints.gguf.tensor_types import TensorType

SIZES = {"hidden_size": 64, "intermediate_size": 64}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments of the check, by their names."""
    found: dict[str, Any] = {}

    def check(*places: Any, **named: Any) -> None:
        found.update(named, rules=places[0], kinds=places[1])
        check_memory(*places, **named)

    monkeypatch.setattr("asyncgen.checkpoints.weight_loading.check_memory", check)
    return found


def panels(core: torch.nn.Module) -> int:
    """Bytes of all packed weights."""
    kernels = [getattr(module, "kernel", None) for module in core.modules()]
    stacks: list[Any] = []
    for kernel in kernels:
        stacks += getattr(kernel, "_runs", [kernel])
    return sum(stack.panels.nbytes for stack in stacks if hasattr(stack, "panels"))


def need(asked: Mapping[str, Any]) -> int:
    counts = {
        rule.target: sum(int(np.prod(shape)) for shape in rule.shapes) for rule in asked["rules"]
    }
    return sum(
        asked["sizes"].get(target, count * asked["kinds"][target].itemsize)
        for target, count in counts.items()
    )


@pytest.mark.parametrize("kind", PACKED, ids=lambda kind: kind.name)
def test_types_of_gguf_take_what_their_layouts_do(kind: TensorType, tmp_path: Path) -> None:
    blocks = random_blocks(kind.name, 8 * PANEL)[: 4 * PANEL].reshape(PANEL, -1)
    number = gguf.GGMLQuantizationType[kind.name]
    file = write_gguf(tmp_path / "x.gguf", {}, {"x": blocks}, {"x": number})
    tensor = open_gguf(file).tensors["x"]
    kept, packed = kept_as(tensor), read_packed(tensor)
    shared = packed.minimums.nbytes if kind.name == "Q2_K" and packed.minimums is not None else 0
    assert kept.num_bytes == packed.num_bytes - shared
    dtype = packed.dequantise().dtype
    if supports_packed(dtype):
        kernel = PackedLinearKernel([packed], None, dtype=dtype)
        assert kept.num_bytes == sum(block.panels.nbytes for block in kernel._runs)


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if "float" not in name])
def test_schemes_take_what_their_layouts_do(
    scheme: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, scheme)
    model = asyncgen.load_model(tmp_path, dtype="float32")
    if not asked["sizes"]:
        pytest.skip("no kernel here multiplies packed weights")
    taken, said = panels(model.core), sum(asked["sizes"].values())
    assert 0.99 * taken <= said <= 1.07 * taken  # zero points may all be the middle


def packed_file(
    folder: Path, family: str, kinds: Mapping[str, str], otherwise: str | None = None
) -> Path:
    """A file whose matrices are of a type by the end of their names."""
    make(family, folder / "hf", **SIZES)
    _, metadata, tensors = read_folder(folder / "hf")
    packed, numbers = dict(tensors), {}
    for name, tensor in tensors.items():
        kind = next((kinds[end] for end in kinds if name.endswith(end)), otherwise)
        if kind is not None and tensor.ndim > 1 and "gate_inp" not in name:
            numbers[name] = gguf.GGMLQuantizationType[kind]
            packed[name] = gguf.quants.quantize(np.ascontiguousarray(tensor), numbers[name])
    return write_gguf(folder / "packed.gguf", metadata, packed, numbers)


def test_memory_need_counts_kept_bytes_instead_of_file_bytes(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = packed_file(tmp_path, "llama", {}, "Q5_0")
    model = asyncgen.load_model(file, dtype="float32")
    if not asked["sizes"]:
        pytest.skip("no kernel here multiplies packed weights")
    assert sum(asked["sizes"].values()) == panels(model.core)
    whole = need(asked)
    assert whole > file.stat().st_size  # 5.5 bits become 8.5
    for free, fits in ((whole, True), (whole - 1, False), (file.stat().st_size, False)):
        monkeypatch.setattr(
            "asyncgen.checkpoints.weight_loading.memory_to_load", lambda device, free=free: free
        )
        if fits:
            asyncgen.load_model(file, dtype="float32")
        else:
            with pytest.raises(ModelLoadError, match="are free on cpu"):
                asyncgen.load_model(file, dtype="float32")


def test_floats_are_counted_without_packed_kernels(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = packed_file(tmp_path, "llama", {}, "Q4_0")
    asyncgen.load_model(file, dtype="float64")
    assert not asked["sizes"]
    tensors = open_gguf(file).tensors.values()
    assert need(asked) == 8 * sum(math.prod(tensor.shape) for tensor in tensors)
    free = need(asked) - 1
    monkeypatch.setattr("asyncgen.checkpoints.weight_loading.memory_to_load", lambda device: free)
    with pytest.raises(ModelLoadError, match="in float64"):
        asyncgen.load_model(file, dtype="float64")


@pytest.mark.parametrize("end", ["ffn_up_exps.weight", "ffn_down_exps.weight"])
def test_experts_that_are_not_alike_are_counted_as_floats(
    end: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    file = packed_file(tmp_path, "mixtral", {end: "Q8_0"}, "Q4_0")
    model = asyncgen.load_model(file, dtype="float32")
    if not asked["sizes"]:
        pytest.skip("no kernel here multiplies packed weights")
    assert sum(asked["sizes"].values()) == panels(model.core)
    experts = [target for target in asked["sizes"] if "experts.gate_up" in target]
    assert bool(experts) == (end == "ffn_down_exps.weight")
