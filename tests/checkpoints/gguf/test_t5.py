"""T5 in GGUF: both stacks of a file, against the checkpoints that the files were made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import pytest
import torch
import transformers
from safetensors.torch import load_file

import asyncgen
from asyncgen.errors import ModelLoadError
from tests.checkpoints.gguf.making import write_gguf

if TYPE_CHECKING:
    from pathlib import Path

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 16,
    "decoder_start_token_id": 0,
}
VARIANTS: list[dict[str, Any]] = [
    {"feed_forward_proj": "relu"},
    {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
]


def made(folder: Path, variant: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The reference's model, and metadata and tensors as llama.cpp's converter makes them."""
    torch.manual_seed(0)
    config = transformers.T5Config(**SIZES, **variant)
    model = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    metadata = {
        "general.architecture": "t5",
        "t5.context_length": 512,
        "t5.embedding_length": 32,
        "t5.feed_forward_length": 48,
        "t5.block_count": 3,
        "t5.decoder_block_count": 2,
        "t5.attention.head_count": 4,
        "t5.attention.key_length": 12,
        "t5.attention.value_length": 12,
        "t5.attention.layer_norm_epsilon": 1e-6,
        "t5.attention.layer_norm_rms_epsilon": 1e-6,
        "t5.attention.relative_buckets_count": 16,
        "t5.decoder_start_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 0,
    }
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5, 3)
    tensors: dict[str, Any] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
            continue
        theirs = names.get_name(name, try_suffixes=(".weight",))
        assert theirs is not None, name
        tensors[theirs] = tensor.numpy()
    if variant.get("tie_word_embeddings") is False:
        model.lm_head = torch.nn.Linear(32, 96, bias=False)
        tensors["output.weight"] = model.lm_head.weight.detach().numpy()
    return model, metadata, tensors


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant["feed_forward_proj"])
def test_both_stacks_are_read(variant: dict[str, Any], tmp_path: Path) -> None:
    theirs, metadata, tensors = made(tmp_path / "hf", variant)
    file = write_gguf(tmp_path / "model.gguf", metadata, tensors)
    ours = asyncgen.load_model(file, dtype="float32")
    ids = torch.arange(2, 26).view(2, 12)
    given = {"input_ids": ids, "decoder_input_ids": ids[:, :5] % 7}
    with torch.no_grad():
        expected = theirs(**given).logits
        found = ours(**given, return_dict=True).logits
        wanted: Any = theirs.generate(ids, max_new_tokens=6, do_sample=False)
        answered: Any = ours.generate(ids, max_new_tokens=6, do_sample=False)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert torch.equal(answered, wanted)


def test_missing_or_wrong_metadata_is_refused_by_key(tmp_path: Path) -> None:
    _, metadata, tensors = made(tmp_path / "hf", VARIANTS[0])
    for key, value in (
        ("t5.decoder_block_count", 10**6),
        ("t5.attention.relative_buckets_count", 2**31 - 1),
        ("t5.decoder_start_token_id", "first"),
        ("t5.attention.key_length", 2**30),
    ):
        file = write_gguf(tmp_path / "bad.gguf", {**metadata, key: value}, tensors)
        with pytest.raises(ModelLoadError, match=r"`[a-z0-9_.]+` is "):
            asyncgen.load_model(file)
    less = {name: one for name, one in tensors.items() if name != "dec.blk.1.cross_attn_k.weight"}
    with pytest.raises(ModelLoadError, match=r"1 missing: decoder\.block\.1\.layer\.1"):
        asyncgen.load_model(write_gguf(tmp_path / "less.gguf", metadata, less))
    more = {**tensors, "enc.blk.1.attn_rel_b.weight": tensors["enc.blk.0.attn_rel_b.weight"]}
    with pytest.raises(ModelLoadError, match="1 unexpected"):
        asyncgen.load_model(write_gguf(tmp_path / "more.gguf", metadata, more))
