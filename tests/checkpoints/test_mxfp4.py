"""Weights in MXFP4: their numbers are those of the specification, and a model of them computes."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from asyncgen import ModelLoadError, load_model
from asyncgen.checkpoints.mxfp4 import widen, widen_into
from tests.checkpoints.packed.one_matrix import Bounded
from tests.checkpoints.packed.test_strange_files import ODD, header_cases
from tests.families.arch.families import make

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

EXPERTS = ("gate_up_proj", "down_proj")
METHOD = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}


def by_the_specification(code: int, scale: int) -> float:
    """OCP MX 1.0, sections 5.3.3 and 5.4.1: a code of four bits times a power of two."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    size = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
    return (-1) ** sign * size * 2.0 ** (scale - 127)


def test_every_code_of_every_scale_is_that_of_the_specification() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(16, 16)
    for scale in range(1, 253):
        found = widen(every, torch.full((16,), scale, dtype=torch.uint8)).flatten().tolist()
        for byte in range(256):
            expected = [by_the_specification(half, scale) for half in (byte & 15, byte >> 4)]
            assert found[2 * byte : 2 * byte + 2] == expected
    assert widen(every[:1], torch.tensor([255], dtype=torch.uint8)).isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_decoded_mxfp4_equals_the_reference(dtype: torch.dtype) -> None:
    theirs = pytest.importorskip("transformers.integrations.mxfp4")
    blocks, scales = drawn(3, 40, 64)
    expected = theirs.convert_moe_packed_tensors(blocks, scales, dtype=dtype).mT.contiguous()
    found = torch.empty(3 * 40 * 64, dtype=dtype)
    widen_into(found, blocks.flatten(), scales.flatten())
    assert torch.equal(found.view(expected.shape), expected)


def drawn(experts: int, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Random blocks ``[experts, rows, columns / 32, 16]`` and their scales."""
    generator = torch.Generator().manual_seed(columns)
    shape = (experts, rows, columns // 32)
    blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(118, 124, shape, generator=generator, dtype=torch.uint8)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint in MXFP4, and the same one in bfloat16."""
    pytest.importorskip("transformers")
    quantised, plain = tmp_path / "quantised", tmp_path / "plain"
    for folder in (quantised, plain):
        folder.mkdir()
        make("gpt_oss", folder, hidden_size=64, intermediate_size=32)
    tensors = load_file(quantised / "model.safetensors")
    dense = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    short = dict(dense)
    for name in [name for name in dense if name.endswith(EXPERTS)]:
        del short[name]
        experts, columns, rows = dense[name].shape  # [E, in, out]
        blocks, scales = drawn(experts, rows, columns)
        short[f"{name}_blocks"], short[f"{name}_scales"] = blocks, scales
        values = widen(blocks.view(-1, 16), scales.flatten())
        dense[name] = values.view(experts, rows, columns).mT.contiguous()
    for folder, weights in ((quantised, short), (plain, dense)):
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    declare(quantised, METHOD)
    return quantised, plain


def declare(folder: Path, method: Mapping[str, object]) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**config, "quantization_config": method}), encoding="utf-8")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_mxfp4_checkpoint_computes_the_same_as_widened_weights(
    folders: tuple[Path, Path], dtype: str
) -> None:
    ids = torch.tensor([[5, 17, 3, 44, 9, 21, 80]])
    found, expected = (load_model(folder, dtype=dtype)(ids).logits for folder in folders)
    assert torch.equal(found, expected) and expected.isfinite().all()


def test_mxfp4_model_is_saved_with_widened_weights(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    ours = load_model(folders[0], dtype="bfloat16")
    ours.save_pretrained(tmp_path / "again")
    assert "quantization_config" not in (tmp_path / "again" / "config.json").read_text()
    saved, plain = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "again", folders[1])
    )
    for name in [name for name in plain if name.endswith(EXPERTS)]:
        assert torch.equal(saved[name], plain[name])


def test_halves_that_do_not_fit_together_are_named(folders: tuple[Path, Path]) -> None:
    file = folders[0] / "model.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("_scales"))
    whole = name.removesuffix("_scales")
    for wrong in (None, tensors[name][:, :-1].contiguous(), tensors[name].to(torch.int8)):
        others = {key: tensor for key, tensor in tensors.items() if key != name}
        save_file(others if wrong is None else {**others, name: wrong}, file)
        with pytest.raises(ModelLoadError, match=f"1 tensors are no blocks and scales: {whole}"):
            load_model(folders[0])


def test_a_tensor_that_is_there_twice_is_named(folders: tuple[Path, Path]) -> None:
    file = folders[0] / "model.safetensors"
    tensors, plain = load_file(file), load_file(folders[1] / "model.safetensors")
    name = next(name for name in plain if name.endswith(EXPERTS))
    save_file({**tensors, name: plain[name]}, file)
    with pytest.raises(ModelLoadError, match=f"1 tensors are no blocks and scales: {name}"):
        load_model(folders[0])


def test_a_block_without_numbers_is_refused_whatever_expert_it_is_of(
    folders: tuple[Path, Path],
) -> None:
    file = folders[0] / "model.safetensors"
    tensors = load_file(file)
    for expert in range(5):
        broken = {key: tensor.clone() for key, tensor in tensors.items()}
        broken[next(key for key in broken if key.endswith("_scales"))][expert, 0, 0] = 255
        save_file(broken, file)
        with pytest.raises(ModelLoadError, match=r"model\.safetensors.* has the scale 255"):
            load_model(folders[0])


def test_a_file_without_such_tensors_is_refused(folders: tuple[Path, Path]) -> None:
    declare(folders[1], METHOD)
    with pytest.raises(ModelLoadError, match=r"quantised \(mxfp4\), but has no such tensors"):
        load_model(folders[1])


def test_another_method_is_refused_by_name(folders: tuple[Path, Path]) -> None:
    declare(folders[0], {"quant_method": "gptq"})
    with pytest.raises(ModelLoadError, match=r"is quantised \(gptq\)"):
        load_model(folders[0])


@pytest.mark.parametrize(
    "count", [3, pytest.param(None, marks=(pytest.mark.soak, pytest.mark.timeout(300)))]
)
def test_strange_files_change_nothing_or_are_refused(
    folders: tuple[Path, Path], count: int | None
) -> None:
    folder, draw, ids = folders[0], random.Random(2), torch.tensor([[5, 17, 3]])
    tensors = load_file(folder / "model.safetensors")
    right = load_model(folder, dtype="float32")(ids).logits

    def is_refused(case: object, named: str) -> bool:
        with Bounded(case):
            try:
                found = load_model(folder, dtype="float32")(ids).logits
            except ModelLoadError as error:
                assert named in str(error) and "config.json" in str(error), (case, str(error))
                assert len(str(error)) < 1500
                return True
        assert torch.equal(found, right), case
        return False

    parts = {name: tensors[name] for name in tensors if name.endswith(("_blocks", "_scales"))}
    cases = [*header_cases(dict([*parts.items()][:2]))]
    for name, what, new in cases if count is None else draw.sample(cases, count):
        others = {key: tensor for key, tensor in tensors.items() if key != name}
        if new is not None:
            others[name] = new.contiguous().clone()
        save_file(others, folder / "model.safetensors", metadata={"format": "pt"})
        assert is_refused((name, what, new), name.rpartition("_")[0])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for value in ODD if count is None else draw.sample(ODD, count):
        for key in ("modules_to_not_convert", "quant_method", "block_size"):
            try:
                declare(folder, {**METHOD, key: value})
            except RecursionError:  # no such file can be written
                continue
            is_refused((key, str(value)[:80]), key)
