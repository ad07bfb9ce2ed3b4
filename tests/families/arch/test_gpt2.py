"""Peculiarities of GPT-2; the laws that it shares with the others are in ``test_decoder.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from asyncgen.errors import ContextLengthError, ModelLoadError
from asyncgen.families.config import ModelConfig
from asyncgen.reference.load_model import load_model
from tests.models.build import all_logits, random_ids, random_pair

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")


def saved(folder: Path, **overrides: Any) -> Any:
    """Save a tiny transformers GPT-2 to a folder."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_positions=24, vocab_size=50, eos_token_id=49, **overrides
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("layered", [False, True])
def test_scores_are_scaled_as_the_file_says(scaled: bool, layered: bool) -> None:
    reference, core = random_pair(
        "gpt2", scale_attn_weights=scaled, scale_attn_by_inverse_layer_idx=layered
    )
    ids = random_ids(2, 9)
    with torch.no_grad():
        expected = reference(ids).logits
    torch.testing.assert_close(all_logits(core, ids), expected, atol=1e-5, rtol=0)


def test_both_spellings_of_a_size_mean_the_same() -> None:
    ours = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
    theirs = {"n_embd": 48, "n_layer": 2, "n_head": 3}
    read = [ModelConfig.from_hf({"model_type": "gpt2", **keys}) for keys in (ours, theirs)]
    assert read[0] == read[1]
    assert read[0].intermediate_size == 4 * 48
    assert read[0].position_limit == 1024


@pytest.mark.parametrize(
    ("key", "value"), [("n_embd", 50), ("n_layer", 0), ("layer_norm_epsilon", "small")]
)
def test_complaints_name_the_key_of_the_file(key: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=f"`{key}`"):
        ModelConfig.from_hf({"model_type": "gpt2", key: value})


def test_cross_attention_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="add_cross_attention"):
        ModelConfig.from_hf({"model_type": "gpt2", "add_cross_attention": True})


@pytest.mark.parametrize("tied", [False, True])
def test_a_checkpoint_of_the_stack_alone_loads(tied: bool, tmp_path: Path) -> None:
    reference = saved(tmp_path, tie_word_embeddings=tied)
    file = tmp_path / "model.safetensors"
    tensors = {name.removeprefix("transformer."): value for name, value in load_file(file).items()}
    # The oldest checkpoints carry a causal mask with every layer.
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 24, 24)
    if not tied:
        del tensors["lm_head.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    if not tied:
        with pytest.raises(ModelLoadError, match=r"lm_head\.weight"):
            load_model(tmp_path)
        return
    ids = random_ids(1, 7, vocab_size=50)
    with torch.no_grad():
        expected = reference(ids).logits
    torch.testing.assert_close(load_model(tmp_path)(ids).logits, expected, atol=1e-5, rtol=0)


def test_too_many_positions_are_refused(tmp_path: Path) -> None:
    reference = saved(tmp_path)
    model: Any = load_model(tmp_path)
    ids = random_ids(2, 20, vocab_size=40)
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[:, :3] = 0
    # Three padded positions count for nothing, and the last token needs no forward of its own.
    options: dict[str, Any] = {"attention_mask": mask, "eos_token_id": [49], "pad_token_id": 0}
    last = reference.generate(ids, max_new_tokens=8, **options)
    assert model.generate(ids, max_new_tokens=8, **options).tolist() == last.tolist()
    with pytest.raises(ContextLengthError, match="24 positions|27 positions"):
        model.generate(ids, max_new_tokens=9, **options)
