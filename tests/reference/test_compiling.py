"""Test `asyncgen.reference.compiling`: a compiled model gives what it gives uncompiled."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen import native
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.generation_config import _warn_once
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.doubles.checkpoints import save_checkpoint
from tests.families.arch.families import FAMILIES as EVERY_FAMILY
from tests.families.arch.families import make
from tests.models.build import random_pair

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.tensor([[5, 9, 2, 7]])


def static(model: Any) -> asyncgen.StaticCache:
    return asyncgen.StaticCache(config=model.config, max_batch_size=1, max_cache_len=16)


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore")
def test_compiled_model_decodes_with_a_static_cache(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    model: Any = asyncgen.load_model(tmp_path)
    compiled: Any = torch.compile(model)
    caches = static(model), static(model)
    ids = IDS
    for _ in range(4):
        ours, theirs = (
            each(ids, past_key_values=cache).logits
            for each, cache in zip((model, compiled), caches, strict=True)
        )
        assert torch.equal(ours, theirs)
        ids = ours[:, -1:].argmax(-1)
    assert [cache.get_seq_length() for cache in caches] == [7, 7]
    sequences = compiled.generate(IDS, max_new_tokens=4, cache_implementation="static")
    assert torch.equal(
        sequences, model.generate(IDS, max_new_tokens=4, cache_implementation="static")
    )


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore")
def test_compiled_encoder_decoder(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    save_checkpoint(tmp_path, model_type="t5", **sizes)
    model: Any = asyncgen.load_model(tmp_path)
    compiled: Any = torch.compile(model)
    given = {"input_ids": IDS, "decoder_input_ids": IDS}
    assert torch.equal(compiled(**given).logits, model(**given).logits)


class Step(torch.nn.Module):
    """A forward pass with a static cache of its own, as programs are exported."""

    def __init__(self, model: Any, rows: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.cache = asyncgen.StaticCache(model.config, rows, 16)

    def forward(
        self, ids: torch.Tensor, places: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        output = self.model(
            ids, attention_mask=mask, past_key_values=self.cache, cache_position=places
        )
        logits: torch.Tensor = output.logits
        return logits


@pytest.fixture
def torchs_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load models as with ``ASYNCGEN_KERNELS=torch``."""
    monkeypatch.setattr(native, "kernels", None)


def check_exported(model: Any) -> None:
    """Decode with an exported step, beyond the windows of the model, and with the model itself."""
    program = torch.export.export(Step(model), (IDS[:, :1], torch.tensor([0]))).module()
    cache = asyncgen.DynamicCache()
    for place, token in enumerate([5, 9, 2, 7, 7, 1, 3]):
        ids = torch.tensor([[token]])
        expected = model(ids, past_key_values=cache).logits
        torch.testing.assert_close(program(ids, torch.tensor([place])), expected)


FAMILIES = ["llama", "mistral", "bloom", "gemma2", "qwen3", "gpt2", "phi3", "olmo2", "cohere"]


@pytest.mark.gate
@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.usefixtures("torchs_kernels")
def test_an_exported_step_decodes_at_every_place(model_type: str) -> None:
    window = {"sliding_window": 3} if model_type in ("mistral", "gemma2") else {}
    model = PreTrainedModel(random_pair(model_type, seed=3, **window)[1])
    model(IDS)
    check_exported(model)


@pytest.mark.soak
@pytest.mark.parametrize("family", sorted(EVERY_FAMILY))
@pytest.mark.usefixtures("torchs_kernels")
def test_every_family_is_exported_right_or_refused_by_name(family: str, tmp_path: Path) -> None:
    make(family, tmp_path)
    try:
        check_exported(asyncgen.load_model(tmp_path))
    except InvalidRequestError as error:
        assert error.parameter == "torch.export" and error.value == family


@pytest.mark.gate
@pytest.mark.usefixtures("torchs_kernels")
def test_an_exported_step_reads_a_chunk_of_a_padded_batch(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    model: Any = asyncgen.load_model(tmp_path)
    ids = torch.tensor([[1, 5, 9, 2], [3, 7, 1, 8]])
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[0, :2] = 0
    step, places = Step(model, 2), torch.arange(4)
    program = torch.export.export(step, (ids, places, mask)).module()
    found = program(ids, places, mask)
    expected = model(ids, attention_mask=mask[:, :4]).logits
    torch.testing.assert_close(found[mask[:, :4] > 0], expected[mask[:, :4] > 0])


@pytest.mark.gate
@pytest.mark.usefixtures("torchs_kernels")
def test_an_exported_model_leaves_nothing_in_the_model(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    model: Any = asyncgen.load_model(tmp_path)
    expected = model(IDS).logits
    program = torch.export.export(model, (IDS + 1,)).module()
    torch.testing.assert_close(program(IDS).logits, expected)
    assert torch.equal(model(IDS).logits, expected)
    assert torch.equal(program(IDS).logits, program(IDS).logits)


@pytest.mark.gate
@pytest.mark.usefixtures("torchs_kernels")
def test_what_a_program_cannot_hold_is_refused_by_name(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "llama")
    model: Any = asyncgen.load_model(tmp_path / "llama")
    cache = asyncgen.StaticCache(model.config, 1, 16)
    offloaded = asyncgen.StaticCache(model.config, 1, 16, offloading=True)
    places = torch.tensor([0, 1, 2, 3])
    cases: list[tuple[dict[str, Any], str]] = [
        ({"past_key_values": cache}, "cache_position"),
        ({"past_key_values": offloaded, "cache_position": places}, "past_key_values"),
        ({"past_key_values": asyncgen.DynamicCache()}, "past_key_values"),
        ({"output_attentions": True}, "output_attentions"),
        ({"labels": IDS}, "labels"),
        ({"cache_position": places}, "cache_position"),
        ({"attention_mask": torch.ones(1, 5)}, "attention_mask"),
        (
            {
                "past_key_values": cache,
                "cache_position": places,
                "attention_mask": torch.ones(1, 17),
            },
            "attention_mask",
        ),
    ]
    for given, name in cases:
        with pytest.raises(InvalidRequestError) as caught:
            export_with(model, given)
        assert caught.value.parameter == name


def export_with(model: Any, given: dict[str, Any]) -> None:
    """Export a call with fixed arguments."""

    class Call(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> Any:
            return self.model(ids, **given).logits

    torch.export.export(Call(), (IDS,))


def test_export_of_own_kernels_says_how_to_turn_them_off(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    model: Any = asyncgen.load_model(tmp_path)
    if not native.supports(model.dtype):
        pytest.skip("no kernels of our own")
    with pytest.raises(InvalidRequestError, match="ASYNCGEN_KERNELS=torch"):
        torch.export.export(model, (IDS,))


@pytest.mark.gate
@pytest.mark.usefixtures("torchs_kernels")
def test_models_with_an_encoder_states_or_experts_are_not_exported(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    save_checkpoint(tmp_path, model_type="t5", **sizes)
    given = {"input_ids": IDS, "decoder_input_ids": IDS}
    with pytest.raises(InvalidRequestError, match=r"torch\.export.*an encoder"):
        torch.export.export(asyncgen.load_model(tmp_path), (), given)
    for model_type, reason in (("mamba", "keep states"), ("gpt_oss", "experts")):
        model: Any = PreTrainedModel(random_pair(model_type, seed=3)[1])
        with pytest.raises(InvalidRequestError, match=rf"torch\.export.*{reason}"):
            torch.export.export(model, (IDS,))


def test_compile_config_is_taken_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_once.cache_clear()
    save_checkpoint(tmp_path)
    model: Any = asyncgen.load_model(tmp_path)
    plain = model.generate(IDS, max_new_tokens=4, cache_implementation="static")
    with caplog.at_level(logging.WARNING, "asyncgen"):
        for _ in range(2):
            found = model.generate(
                IDS,
                max_new_tokens=4,
                cache_implementation="static",
                compile_config=asyncgen.CompileConfig(dynamic=True),
            )
            assert torch.equal(found, plain)
    assert caplog.text.count("`compile_config` has no effect") == 1
