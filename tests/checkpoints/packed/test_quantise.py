"""Weights that are packed: their errors, and models that are packed while they load."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch

import asyncgen
from asyncgen import BitsAndBytesConfig
from asyncgen.checkpoints.packed.quantise import Packing, quantise
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.models.kernels.native_packed import (
    PackedLinearKernel,
    PackedStack,
    supports_packed,
)
from tests.cases import for_each
from tests.families.arch.families import make

if TYPE_CHECKING:
    from pathlib import Path

PACKS = supports_packed(torch.float32)
needs_kernels = pytest.mark.skipif(not PACKS, reason="needs our kernels, for AVX-512 and VNNI")


def test_errors_are_half_a_scale() -> None:
    weight = torch.randn(70, 100) * torch.rand(70, 1)
    packings: tuple[Packing, ...] = ("int8", "int4")
    for packing in packings:
        packed = quantise(weight, packing)
        errors = (packed.dequantise() - weight).abs()
        scales = packed.full_scales().repeat_interleave(32, dim=1)[:, :100]
        assert bool((errors <= 0.51 * scales + 1e-6).all())


def test_zeros_stay_zeros_and_what_is_no_number_is_refused() -> None:
    assert torch.equal(quantise(torch.zeros(3, 40), "int4").dequantise(), torch.zeros(3, 40))
    weight = torch.randn(4, 64)
    weight[weight.abs() < 0.5] = 0
    found = quantise(weight, "int4").dequantise()
    assert torch.equal(found[weight == 0], weight[weight == 0])
    for broken in (torch.nan, torch.inf, 1e30):
        with pytest.raises(ValueError, match="cannot be packed"):
            quantise(torch.full((2, 32), broken), "int8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama."""
    pytest.importorskip("transformers")
    make("llama", tmp_path)
    return tmp_path


def logits(model: Any) -> torch.Tensor:
    """Of a few tokens of two rows."""
    ids = torch.arange(2, 22).view(2, 10)
    found: torch.Tensor = model(input_ids=ids, return_dict=True).logits
    return found


@pytest.mark.parametrize("packing", ["int8", "int4"])
@pytest.mark.parametrize(
    "family",
    ["llama", "qwen2", "gpt2", "gemma2", "deepseek_v3", "mixtral", "qwen2_moe", "mamba", "phi"],
)
def test_a_packed_model_computes_what_its_weights_are(
    tmp_path: Path, family: str, packing: Packing
) -> None:
    """The weights that it saves, loaded as floats, give the same logits."""
    pytest.importorskip("transformers")
    make(family, tmp_path)
    packed = asyncgen.load_model(tmp_path, dtype="float32", quantize=packing)
    packed.save_pretrained(tmp_path / "saved")
    plain = asyncgen.load_model(tmp_path / "saved", dtype="float32")
    torch.testing.assert_close(logits(packed), logits(plain), atol=2e-3, rtol=2e-3)
    original = asyncgen.load_model(tmp_path, dtype="float32")
    assert not torch.equal(logits(original), logits(plain))


@needs_kernels
@pytest.mark.parametrize(
    "dtype", [name for name in ("float32", "bfloat16") if supports_packed(getattr(torch, name))]
)
def test_blocks_of_packed_weights_are_one_call(folder: Path, dtype: str) -> None:
    packings: tuple[Packing, ...] = ("int8", "int4")
    for packing in packings:
        core: Any = asyncgen.load_model(folder, dtype=dtype, quantize=packing).core
        kernels = [layer.qkv.kernel for layer in core.layers] + [core.lm_head.kernel]
        assert all(isinstance(kernel, PackedLinearKernel) for kernel in kernels)
        assert core._ready()[5] is not None
        assert core.embed_tokens.weight.numel() == 0


@needs_kernels
@pytest.mark.anyio
async def test_experts_are_packed(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    make("mixtral", tmp_path)
    kind = "bfloat16" if supports_packed(torch.bfloat16) else "float32"
    core: Any = asyncgen.load_model(tmp_path, dtype=kind, quantize="int4").core
    experts = core.layers[0].experts
    stacks = [experts.gate_up.kernel, experts.down.kernel]
    assert all(isinstance(stack, PackedStack) for stack in stacks)
    assert core._ready()[5] is not None


@pytest.mark.anyio
async def test_packed_model_streams_equal_those_of_single_requests() -> None:
    prompts = ["One day", "The old boat", "A girl named Ann"]
    options: Any = {"dtype": "bfloat16", "quantize": "int4"}
    async with asyncgen.AsyncLLM("demo", **options) as llm:
        alone = [await llm.generate(one, max_new_tokens=12, seed=3) for one in prompts]
        found: dict[int, Any] = {}

        async def answer(number: int) -> None:
            found[number] = await llm.generate(prompts[number], max_new_tokens=12, seed=3)

        async with anyio.create_task_group() as group:
            for number in range(len(prompts)):
                group.start_soon(answer, number)
    assert [found[number].text for number in range(len(prompts))] == [one.text for one in alone]


def test_weights_can_be_looked_at_and_resized(folder: Path) -> None:
    model = asyncgen.load_model(folder, dtype="float32", quantize="int8")
    before = logits(model)
    model.resize_token_embeddings(100)
    torch.testing.assert_close(logits(model)[..., :96], before, atol=2e-3, rtol=2e-3)
    again = asyncgen.load_model(folder, dtype="float32", quantize="int8")
    table = again.get_input_embeddings().weight
    assert table.shape == (96, 32)
    state = asyncgen.load_model(folder, dtype="float32", quantize="int8").state_dict()
    assert all(tensor.numel() for tensor in state.values())


def test_weights_are_unpacked_without_packed_kernels(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    packed = asyncgen.load_model(folder, dtype="float32", quantize="int4")
    monkeypatch.setattr("asyncgen.native.kernels", None)
    with caplog.at_level(logging.WARNING, "asyncgen.models"):
        unpacked = asyncgen.load_model(folder, dtype="float32", quantize="int4")
    assert "they are unpacked" in caplog.text
    monkeypatch.undo()
    torch.testing.assert_close(logits(unpacked), logits(packed), atol=2e-3, rtol=2e-3)


def load(folder: Path, **options: Any) -> Any:
    """A model in the reference's words."""
    return asyncgen.AutoModelForCausalLM.from_pretrained(folder, **options)


def test_the_reference_s_ways_to_ask(folder: Path) -> None:
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    four = logits(load(folder, quantization_config=config, device_map="cpu"))
    asked = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    for given in (asked, config.to_dict(), {**asked, "_load_in_4bit": True}):
        assert torch.equal(logits(load(folder, quantization_config=given)), four)
    assert torch.equal(logits(load(folder, quantization_config=config, load_in_4bit=True)), four)
    default = BitsAndBytesConfig(load_in_4bit=True)
    other = logits(load(folder, quantization_config=default))
    assert not torch.equal(other, four)
    assert torch.equal(logits(load(folder, load_in_4bit=True)), other)
    assert not torch.equal(logits(load(folder, quantize="int4")), other)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    assert load(folder, quantization_config=config).dtype is torch.bfloat16
    assert load(folder, quantization_config=config, dtype="float32").dtype is torch.float32
    eight = logits(load(folder, quantization_config=BitsAndBytesConfig(load_in_8bit=True)))
    assert torch.equal(logits(load(folder, load_in_8bit=True)), eight)
    nothing = logits(load(folder, quantization_config=BitsAndBytesConfig()))
    assert torch.equal(nothing, logits(load(folder)))


def test_config_is_the_reference_s() -> None:
    reference = pytest.importorskip("transformers").BitsAndBytesConfig
    for given in (
        {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
        {"load_in_4bit": True, "bnb_4bit_compute_dtype": "bfloat16"},
        {"load_in_8bit": True, "llm_int8_skip_modules": ["lm_head"], "llm_int8_threshold": 5.0},
        {"bnb_4bit_quant_storage": torch.float16},
    ):
        ours, theirs = BitsAndBytesConfig(**given), reference(**given)
        assert ours.quantization_method() == theirs.quantization_method()
        assert ours.is_quantizable() == theirs.is_quantizable()
        there = {name: one for name, one in theirs.to_dict().items() if not name.startswith("_")}
        assert ours.to_dict() == there
        assert BitsAndBytesConfig.from_dict(theirs.to_dict()).to_dict() == there
        assert ours.bnb_4bit_compute_dtype == theirs.bnb_4bit_compute_dtype


TABLES = {
    "nf4": "-1 -.6961928 -.5250731 -.3949175 -.2844414 -.1847734 -.09105 0 .0795803 .1609302 "
    ".2461123 .3379152 .4407098 .562617 .7229568 1",
    "fp4": "0 .00520833 .66666667 1 .33333333 .5 .16666667 .25 "
    "-0 -.00520833 -.66666667 -1 -.33333333 -.5 -.16666667 -.25",
}
"""bitsandbytes' numbers."""


@for_each("codes, inputs", [("nf4", 128), ("fp4", 128), ("nf4", 100), ("fp4", 32), ("nf4", 1)])
def test_four_bits_are_the_nearest_of_bitsandbytes_numbers(codes: Any, inputs: int) -> None:
    weight = torch.randn(9, inputs) * torch.rand(9, 1)
    weight[3] = 0
    table = torch.tensor([float(number) for number in TABLES[codes].split()])
    right = torch.empty_like(weight)
    for start in range(0, inputs, 64):
        block = weight[:, start : start + 64]
        largest = block.abs().amax(dim=1, keepdim=True)
        nearest = (block / largest.clamp(min=1e-9)).unsqueeze(2).sub(table).abs().argmin(dim=2)
        right[:, start : start + 64] = table[nearest] * largest
    found = quantise(weight, codes).dequantise()
    error = 1 / 4094 if codes == "nf4" else 1e-6
    assert bool(((found - right).abs() <= error * weight.abs().amax() + 1e-7).all())
    assert bool((found - right).abs().max() < (weight - right).abs().max() / 50) or inputs == 1


def changed(folder: Path, **options: Any) -> set[str]:
    """Names of the stored weights that loading rounds."""
    from safetensors.torch import load_file

    config = BitsAndBytesConfig(**{"load_in_4bit": True, **options})
    model = load(folder, quantization_config=config, dtype="float32")
    model.save_pretrained(folder / "saved")
    before = load_file(folder / "model.safetensors")
    after = load_file(folder / "saved" / "model.safetensors")
    assert set(before) == set(after)
    return {name.removesuffix(".weight") for name in before if not before[name].equal(after[name])}


@pytest.fixture
def packed_all() -> dict[str, Any]:
    """Names of the weights of a family that are rounded if none is skipped."""
    pytest.importorskip("transformers")
    return {}


@for_each(
    "family, skipped, stays",
    [
        ("llama", None, "lm_head"),
        ("llama", [], ""),
        ("llama", ["q_proj"], r".*q_proj"),
        ("llama", ["lm_head", "model.layers.1"], r"lm_head|model\.layers\.1\..*"),
        ("llama", ["gate_proj", "v_proj", "lm_head"], r"lm_head|.*(gate|v)_proj"),
        ("llama", [r"model\.layers\..*\.mlp"], r".*mlp.*"),
        ("llama", ["mlp.up", "layer"], ""),
        ("gpt2", ["c_attn"], r".*c_attn"),
        ("bloom", ["transformer.h.0"], r"transformer\.h\.0\..*"),
        ("mixtral", ["experts.1.w3"], r".*experts\.1\.w3"),
        ("deepseek_v3", ["kv_a_proj_with_mqa", "lm_head"], r"lm_head|.*kv_a_proj_with_mqa"),
    ],
)
def test_skipped_modules_stay_as_they_are_stored(
    family: str, skipped: list[str] | None, stays: str, packed_all: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / family
    if family not in packed_all:
        make(family, folder)
        packed_all[family] = changed(folder, llm_int8_skip_modules=[])
    always = packed_all[family]
    assert len(always) > 6
    assert not any("embed" in name or "norm" in name for name in always)
    found = changed(folder, llm_int8_skip_modules=skipped)
    assert found == {name for name in always if not re.fullmatch(stays, name)}
    assert found < always or not stays or stays == "lm_head"


def test_parts_of_a_parameter_are_rounded_as_if_they_were_packed(folder: Path) -> None:
    """All weights but the skipped ones are those of a parameter that is packed as a whole."""
    from safetensors.torch import load_file

    saved: list[dict[str, torch.Tensor]] = []
    for skipped in (["lm_head"], ["k_proj", "lm_head"]):
        config = BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skipped)
        load(folder, quantization_config=config).save_pretrained(folder / "saved")
        saved.append(load_file(folder / "saved" / "model.safetensors"))
    differ = {name for name, one in saved[0].items() if not one.equal(saved[1][name])}
    assert differ == {name for name in saved[0] if name.endswith("k_proj.weight")}


def test_parts_of_a_parameter_are_not_rounded_to_the_dtype_of_the_file(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {
        name: one.bfloat16() for name, one in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = BitsAndBytesConfig(load_in_4bit=True, llm_int8_skip_modules=["k_proj"])
    model = load(folder, quantization_config=config, dtype="float32")
    model.save_pretrained(folder / "saved")
    found = load_file(folder / "saved" / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(found[name], quantise(tensors[name], "fp4").dequantise())


def test_a_file_that_is_packed_by_bitsandbytes_keeps_its_own_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.checkpoints.packed.test_quantized_checkpoint import write

    write(tmp_path, "nf4")
    right = logits(load(tmp_path, dtype="float32"))
    with caplog.at_level(logging.WARNING, "asyncgen.models"):
        found = logits(load(tmp_path, dtype="float32", load_in_4bit=True))
    assert torch.equal(found, right)
    assert "its own settings are used" in caplog.text
    with pytest.raises(InvalidRequestError, match="packed already"):
        load(tmp_path, quantize="int4")


@for_each(
    "options, named",
    [
        ({"load_in_4bit": True, "load_in_8bit": True}, "load_in_4bit"),
        ({"load_in_4bit": 1}, "load_in_4bit"),
        ({"bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type"),
        ({"bnb_4bit_compute_dtype": "int8"}, "bnb_4bit_compute_dtype"),
        ({"bnb_4bit_quant_storage": "int4"}, "bnb_4bit_quant_storage"),
        ({"llm_int8_skip_modules": "lm_head"}, "llm_int8_skip_modules"),
        ({"llm_int8_skip_modules": ["("]}, "llm_int8_skip_modules"),
        ({"llm_int8_threshold": "6"}, "llm_int8_threshold"),
        ({"llm_int8_has_fp16_weight": True}, "llm_int8_has_fp16_weight"),
    ],
)
def test_unsupported_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        BitsAndBytesConfig(**options)


@for_each(
    "options, named",
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantization_config"),
        ({"quantization_config": {"load_in_4bit": True, "bits": 4}}, "`bits` is 4"),
        ({"quantization_config": {"load_in_4bit": False, "_load_in_4bit": True}}, "load_in_4bit"),
        ({"quantization_config": {"load_in_4bit": True}, "load_in_8bit": True}, "load_in_8bit"),
        ({"load_in_4bit": True, "quantize": "int4"}, "quantize"),
    ],
)
def test_contradictions_are_refused_by_name(
    options: dict[str, Any], named: str, folder: Path
) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        load(folder, **options)


def test_a_checkpoint_that_cannot_be_packed_is_named(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.down_proj.weight"][0, 0] = torch.inf
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"`layers.1.down.weight`: .* without `quantize`"):
        asyncgen.load_model(folder, quantize="int8")
