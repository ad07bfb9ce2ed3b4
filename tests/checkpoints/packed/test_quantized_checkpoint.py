"""Checkpoints whose weights are packed: each scheme, made by hand from its format's formula."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import asyncgen
from asyncgen.errors import InvalidRequestError, ModelLoadError
from tests.families.arch.families import make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Made = tuple[dict[str, Tensor], Tensor]

NF4 = [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0]
NF4 += [0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0]
FP4 = [0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25]
FP4 += [-one for one in FP4]


def words(numbers: Tensor, bits: int) -> Tensor:
    """Numbers without a sign ``[rows, n]`` in words of 32 bits, the first in the lowest."""
    count = 32 // bits
    shifts = torch.arange(count) * bits
    found = (numbers.long().view(len(numbers), -1, count) << shifts).sum(-1)
    return torch.where(found >= 1 << 31, found - (1 << 32), found).to(torch.int32)


def drawn(outputs: int, inputs: int, groups: int, bits: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers without a sign, scales of groups in float16, zero points that are not 0."""
    middle = 1 << bits - 1
    numbers = torch.randint(0, 2 * middle, (outputs, inputs))
    scales = ((torch.rand(outputs, groups) + 0.1) / 6 / middle).half()
    return numbers, scales, torch.randint(middle - 3, middle + 1, (outputs, groups))


def values(numbers: Tensor, scales: Tensor, zeros: Tensor, size: int) -> Tensor:
    """Return the weights in float32."""
    wide = [one.float().repeat_interleave(size, dim=1) for one in (scales, zeros)]
    return (numbers.float() - wide[1]) * wide[0]


def gptq(
    outputs: int, inputs: int, *, bits: int = 4, mixes: bool = False, one: int = 1, size: int = 32
) -> Made:
    numbers, scales, zeros = drawn(outputs, inputs, inputs // size, bits)
    groups = torch.arange(inputs) // size
    dense = values(numbers, scales, zeros, size)
    if mixes:
        order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
        groups, numbers, dense = groups[order], numbers[:, order], dense[:, order]
    parts = {
        "qweight": words(numbers, bits).mT.contiguous(),
        "qzeros": words(zeros.mT.contiguous() - one, bits),
        "scales": scales.mT.contiguous(),
        "g_idx": groups.int(),
    }
    return parts, dense


def awq(outputs: int, inputs: int) -> Made:
    numbers, scales, zeros = drawn(outputs, inputs, inputs // 32)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def packed(columns: Tensor) -> Tensor:
        return words(columns.mT.reshape(columns.shape[1], -1, 8)[..., order].flatten(1), 4)

    parts = {"qweight": packed(numbers), "qzeros": packed(zeros), "scales": scales.mT.contiguous()}
    return parts, values(numbers, scales, zeros, 32)


def integers(outputs: int, inputs: int, *, by_row: bool = True) -> Made:
    size = inputs if by_row else 32
    numbers, scales, _ = drawn(outputs, inputs, inputs // size, 8)
    scales = scales.bfloat16()
    dense = values(numbers, scales, torch.full(scales.shape, 128), size)
    return {"weight": (numbers - 128).to(torch.int8), "weight_scale": scales}, dense


def words_of_four(outputs: int, inputs: int, *, is_symmetric: bool = False) -> Made:
    numbers, scales, zeros = drawn(outputs, inputs, inputs // 32)
    zeros = torch.full_like(zeros, 8) if is_symmetric else zeros
    parts = {
        "weight_packed": words(numbers, 4),
        "weight_shape": torch.tensor([outputs, inputs]),
        "weight_scale": scales,
    }
    if not is_symmetric:
        parts["weight_zero_point"] = words(zeros.mT.contiguous(), 4).mT.contiguous()
    return parts, values(numbers, scales, zeros, 32)


def four_bits(outputs: int, inputs: int, *, table: list[float], nested: bool = False) -> Made:
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    absmax = torch.rand(outputs * inputs // 64) / 10 + 0.01
    kind = "nf4" if table is NF4 else "fp4"
    state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "shape": [outputs, inputs]}
    parts = {
        "weight": (codes.flatten()[0::2] << 4 | codes.flatten()[1::2]).view(-1, 1),
        "weight.absmax": absmax,
        "weight.quant_map": torch.tensor(table),
    }
    if nested:
        levels = torch.linspace(-1, 1, 256)
        index = torch.randint(0, 256, absmax.shape, dtype=torch.uint8)
        large = torch.rand(-(-len(absmax) // 4)) / 50
        state |= {"nested_blocksize": 4, "nested_offset": 0.05}
        absmax = levels[index.int()] * large.repeat_interleave(4)[: len(index)] + 0.05
        parts |= {
            "weight.absmax": index,
            "weight.nested_absmax": large,
            "weight.nested_quant_map": levels,
        }
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(
        list(json.dumps(state).encode()), dtype=torch.uint8
    )
    dense = torch.tensor(table)[codes.int()] * absmax.repeat_interleave(64).view(outputs, inputs)
    return parts, dense


def eight_bits(outputs: int, inputs: int) -> Made:
    numbers = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    most = torch.rand(outputs) / 5
    return {"weight": numbers, "SCB": most}, numbers.float() * (most / 127)[:, None]


def float8(outputs: int, inputs: int, *, block: int = 0, name: str = "weight_scale") -> Made:
    weight = (torch.randn(outputs, inputs)).to(torch.float8_e4m3fn)
    scales = torch.rand(outputs, 1) / 10
    wide = scales
    if block:
        scales = torch.rand(-(-outputs // block), -(-inputs // block)) / 10
        wide = scales.repeat_interleave(block, 0)[:outputs].repeat_interleave(block, 1)[:, :inputs]
    return {"weight": weight, name: scales}, weight.float() * wide


def compressed(form: str, bits: int, strategy: str, kind: str = "int") -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": 32}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


SCHEMES: dict[str, tuple[Callable[[int, int], Made], dict[str, Any], float]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32}, 0),
    "gptq mixed": (
        lambda out, inputs: gptq(out, inputs, mixes=True),
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
        0,
    ),
    "gptq 8": (
        lambda out, inputs: gptq(out, inputs, bits=8, one=0),
        {"quant_method": "gptq", "bits": 8, "group_size": 32, "checkpoint_format": "gptq_v2"},
        0,
    ),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, 0),
    "int8 rows": (integers, compressed("int-quantized", 8, "channel"), 0),
    "int8 groups": (
        lambda out, inputs: integers(out, inputs, by_row=False),
        compressed("int-quantized", 8, "group"),
        0,
    ),
    "int4 zeros": (words_of_four, compressed("pack-quantized", 4, "group"), 0),
    "int4": (
        lambda out, inputs: words_of_four(out, inputs, is_symmetric=True),
        compressed("pack-quantized", 4, "group"),
        0,
    ),
    "float8 rows": (float8, compressed("float-quantized", 8, "channel", "float"), 0),
    "float8 blocks": (
        lambda out, inputs: float8(out, inputs, block=16, name="weight_scale_inv"),
        {"quant_method": "fp8", "weight_block_size": [16, 16]},
        0,
    ),
    "nf4": (
        lambda out, inputs: four_bits(out, inputs, table=NF4),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        3e-5,
    ),
    "nf4 nested": (
        lambda out, inputs: four_bits(out, inputs, table=NF4, nested=True),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        3e-5,
    ),
    "fp4": (
        lambda out, inputs: four_bits(out, inputs, table=FP4),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        1e-7,
    ),
    "int8 of bitsandbytes": (
        eight_bits,
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        0,
    ),
}


def write(folder: Path, scheme: str) -> None:
    """Make a checkpoint in a scheme, and the same one in float32 in its folder ``plain``."""
    make_one, settings, _ = SCHEMES[scheme]
    write_each(folder, lambda name, outputs, inputs: make_one(outputs, inputs), settings)


def write_each(
    folder: Path,
    make_one: Callable[[str, int, int], Made],
    settings: dict[str, Any],
    **sizes: int,
) -> None:
    """Make a checkpoint of matrices that depend on their names, and its folder ``plain``."""
    pytest.importorskip("transformers")
    torch.manual_seed(1)
    (folder / "plain").mkdir()
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, **sizes}
    make("llama", folder, **sizes)
    tensors = load_file(folder / "model.safetensors")
    packed, plain = dict(tensors), dict(tensors)
    for name in tensors:
        if not name.endswith("_proj.weight"):
            continue
        outputs, inputs = tensors[name].shape
        parts, plain[name] = make_one(name.removesuffix(".weight"), outputs, inputs)
        del packed[name]
        packed |= {f"{name.removesuffix('.weight')}.{part}": one for part, one in parts.items()}
    config = json.loads((folder / "config.json").read_text())
    (folder / "plain" / "config.json").write_text(json.dumps(config))
    config["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config))
    for place, made in ((folder, packed), (folder / "plain", plain)):
        made = {name: one.contiguous() for name, one in made.items()}
        save_file(made, place / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_are_those_of_the_format(tmp_path: Path, scheme: str) -> None:
    write(tmp_path, scheme)
    packed = asyncgen.load_model(tmp_path, dtype="float32")
    plain = asyncgen.load_model(tmp_path / "plain", dtype="float32")
    packed.save_pretrained(tmp_path / "saved")
    found = load_file(tmp_path / "saved" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "plain" / "model.safetensors").items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=SCHEMES[scheme][2])
    ids = torch.arange(2, 22).view(2, 10)
    logits = [model(input_ids=ids, return_dict=True).logits for model in (packed, plain)]
    torch.testing.assert_close(*logits, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"quant_method": "hqq"}, "quantised .hqq., which is not supported"),
        ({"quant_method": "gptq", "bits": 3}, "`bits` is 3"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "'marlin'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "'gemv'"),
        (compressed("marlin-24", 4, "group"), "'marlin-24'"),
        (
            compressed("pack-quantized", 4, "token"),
            "group_0.weights.strategy` is 'token'",
        ),
        (
            compressed("pack-quantized", 2, "group"),
            r"num_bits` is 2; supported are \[4, 8\]",
        ),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "'e5m2'"),
        ({"quant_method": "awq", "bits": 4}, r"'\*.qweight' is missing"),
    ],
)
def test_schemes_that_are_not_known_are_named(
    tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    pytest.importorskip("transformers")
    make("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    with pytest.raises(ModelLoadError, match=named):
        asyncgen.load_model(tmp_path)


def test_packed_weights_are_not_packed_again(tmp_path: Path) -> None:
    write(tmp_path, "gptq")
    with pytest.raises(InvalidRequestError, match="packed already"):
        asyncgen.load_model(tmp_path, quantize="int4")


def test_parts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write(tmp_path, "gptq")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.down_proj.scales"
    save_file({**tensors, name: tensors[name][:-1].contiguous()}, file)
    with pytest.raises(ModelLoadError, match=r"layers.1.mlp.down_proj` cannot be unpacked"):
        asyncgen.load_model(tmp_path)
