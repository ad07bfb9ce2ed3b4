"""Test `asyncgen.reference.compiling`: a compiled model gives what it gives uncompiled."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.generation.config.generation_config import _warn_once
from tests.doubles.checkpoints import save_checkpoint

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


def test_export_is_refused_by_name(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    with pytest.raises(asyncgen.InvalidRequestError, match=r"torch\.export"):
        torch.export.export(asyncgen.load_model(tmp_path), (IDS,))


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
