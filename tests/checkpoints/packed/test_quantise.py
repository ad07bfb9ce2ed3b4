"""Weights that are packed: their errors, and models that are packed while they load."""

from __future__ import annotations

import logging
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
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_of_packed_weights_are_one_call(folder: Path, dtype: str) -> None:
    packings: tuple[Packing, ...] = ("int8", "int4")
    for packing in packings:
        core: Any = asyncgen.load_model(folder, dtype=dtype, quantize=packing).core
        kernels = [layer.qkv.kernel for layer in core.layers] + [core.lm_head.kernel]
        assert all(isinstance(kernel, PackedLinearKernel) for kernel in kernels)
        assert core._ready()[5] is not None
        assert core.embed_tokens.weight.numel() == 0


@pytest.mark.anyio
async def test_experts_are_packed(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    make("mixtral", tmp_path)
    core: Any = asyncgen.load_model(tmp_path, dtype="bfloat16", quantize="int4").core
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


def test_the_reference_s_ways_to_ask(folder: Path) -> None:
    def load(**options: Any) -> Any:
        return asyncgen.AutoModelForCausalLM.from_pretrained(folder, **options)

    four = logits(load(quantize="int4"))
    assert torch.equal(logits(load(load_in_4bit=True)), four)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    assert torch.equal(logits(load(quantization_config=config, device_map="cpu")), four)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    assert load(quantization_config=config).dtype is torch.bfloat16
    assert load(quantization_config=config, dtype="float32").dtype is torch.float32
    eight = logits(load(quantization_config=BitsAndBytesConfig(load_in_8bit=True)))
    assert torch.equal(logits(load(load_in_8bit=True)), eight)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"load_in_4bit": True, "load_in_8bit": True}, "load_in_4bit"),
        ({"bnb_4bit_quant_type": "int4"}, "bnb_4bit_quant_type"),
        ({"llm_int8_skip_modules": ["lm_head"]}, "llm_int8_skip_modules"),
        ({"llm_int8_has_fp16_weight": True}, "llm_int8_has_fp16_weight"),
    ],
)
def test_unsupported_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        BitsAndBytesConfig(**options)


def test_a_checkpoint_that_cannot_be_packed_is_named(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.down_proj.weight"][0, 0] = torch.inf
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"`layers.1.down.weight`: .* without `quantize`"):
        asyncgen.load_model(folder, quantize="int8")
