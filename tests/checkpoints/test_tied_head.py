"""Test `asyncgen.checkpoints.tied_head`: heads beside a tied table, as transformers reads them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file, save_model

import asyncgen
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path

IDS = torch.tensor([[5, 9, 2, 7, 1]])
FILE = "model.safetensors"

FAMILIES = {
    "llama": {"hidden_size": 32, "intermediate_size": 48, "num_key_value_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "gemma2": {"hidden_size": 32, "intermediate_size": 48, "head_dim": 8, "num_key_value_heads": 2},
    "opt": {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48},
    "phi": {"hidden_size": 32, "intermediate_size": 48},
}
SIZES = {"vocab_size": 61, "num_hidden_layers": 2, "num_attention_heads": 4, "pad_token_id": 0}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 61}


def made(folder: Path, family: str, **settings: Any) -> Any:
    """Save a random model of a family with tied weights."""
    torch.manual_seed(0)
    sizes = T5 if family == "t5" else {**SIZES, **FAMILIES[family]}
    kind = transformers.AutoModelForSeq2SeqLM if family == "t5" else None
    config = transformers.AutoConfig.for_model(
        family, **sizes, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2, **settings
    )
    model = (kind or transformers.AutoModelForCausalLM).from_config(config).float().eval()
    model.save_pretrained(folder)
    return model


def logits_of(model: Any, family: str) -> torch.Tensor:
    """Compute logits of some ids, of ours or of transformers."""
    with torch.no_grad():
        return model(IDS, **({"decoder_input_ids": IDS} if family == "t5" else {})).logits


def head_of(family: str) -> tuple[str, str]:
    """Name the stored table and head."""
    tables = {"gpt2": "transformer.wte", "opt": "model.decoder.embed_tokens", "t5": "shared"}
    return f"{tables.get(family, 'model.embed_tokens')}.weight", "lm_head.weight"


@for_each("family", [*FAMILIES, "t5"])
def test_stored_head_that_differs_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, family: str
) -> None:
    folder = tmp_path / family
    made(folder, family)
    tensors = load_file(folder / FILE)
    tensors[head_of(family)[1]] = torch.randn(61, 32)
    save_file(tensors, folder / FILE, {"format": "pt"})
    kind = transformers.AutoModelForSeq2SeqLM if family == "t5" else None
    reference = (kind or transformers.AutoModelForCausalLM).from_pretrained(folder)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "asyncgen"):
        model = asyncgen.load_model(folder)
    torch.testing.assert_close(
        logits_of(model, family), logits_of(reference, family), atol=1e-4, rtol=1e-4
    )
    assert "the stored head is used" in caplog.text
    model.save_pretrained(folder / "again")
    again = asyncgen.load_model(folder / "again")
    assert torch.equal(logits_of(again, family), logits_of(model, family))


@for_each("family", [*FAMILIES, "t5"])
def test_stored_copy_of_the_table_stays_tied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, family: str
) -> None:
    folder = tmp_path / family
    reference = made(folder, family)
    tensors = load_file(folder / FILE)
    table, head = head_of(family)
    save_file({**tensors, head: tensors[table].clone()}, folder / FILE, {"format": "pt"})
    caplog.clear()
    with caplog.at_level(logging.WARNING, "asyncgen"):
        model = asyncgen.load_model(folder)
    assert model.core.config.tie_word_embeddings
    assert not caplog.text
    torch.testing.assert_close(
        logits_of(model, family), logits_of(reference, family), atol=1e-4, rtol=1e-4
    )


@for_each("family", [*FAMILIES, "t5"])
def test_table_stored_as_the_head_alone(tmp_path: Path, family: str) -> None:
    folder = tmp_path / family
    reference = made(folder, family)
    tensors = load_file(folder / FILE)
    table, head = head_of(family)
    save_file({head: tensors.pop(table), **tensors}, folder / FILE, {"format": "pt"})
    model = asyncgen.load_model(folder)
    assert model.core.config.tie_word_embeddings
    torch.testing.assert_close(
        logits_of(model, family), logits_of(reference, family), atol=1e-4, rtol=1e-4
    )


@for_each("family", [*FAMILIES, "t5"])
def test_file_of_save_model(tmp_path: Path, family: str) -> None:
    """`safetensors` keeps one name of each shared tensor; the metadata name the others."""
    folder = tmp_path / family
    reference = made(folder, family)
    save_model(reference, str(folder / FILE))
    model = asyncgen.load_model(folder)
    torch.testing.assert_close(
        logits_of(model, family), logits_of(reference, family), atol=1e-4, rtol=1e-4
    )


def test_head_of_another_dtype_or_far_away_row_is_compared_by_value(tmp_path: Path) -> None:
    made(tmp_path, "llama")
    tensors = load_file(tmp_path / FILE)
    table, head = head_of("llama")
    half = tensors[table].bfloat16()
    save_file({**tensors, table: half, head: half.float()}, tmp_path / FILE, {"format": "pt"})
    assert asyncgen.load_model(tmp_path).core.config.tie_word_embeddings
    other = half.float().clone()
    other[-1, -1] += 1e-3
    save_file({**tensors, table: half, head: other}, tmp_path / FILE, {"format": "pt"})
    assert not asyncgen.load_model(tmp_path).core.config.tie_word_embeddings


def test_head_of_another_shape_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "llama")
    tensors = load_file(tmp_path / FILE)
    save_file({**tensors, "lm_head.weight": torch.zeros(64, 32)}, tmp_path / FILE, {"format": "pt"})
    with pytest.raises(asyncgen.ModelLoadError, match=r"lm_head.weight is \[64, 32\]"):
        asyncgen.load_model(tmp_path)


def test_blocks_reach_the_last_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncgen.checkpoints.tied_head._BLOCK", 7)
    made(tmp_path, "llama")
    tensors = load_file(tmp_path / FILE)
    table, head = head_of("llama")
    other = tensors[table].clone()
    save_file({**tensors, head: other}, tmp_path / FILE, {"format": "pt"})
    assert asyncgen.load_model(tmp_path).core.config.tie_word_embeddings
    other[-1, -1] += 1
    save_file({**tensors, head: other}, tmp_path / FILE, {"format": "pt"})
    assert not asyncgen.load_model(tmp_path).core.config.tie_word_embeddings
