"""Peculiarities of T5: an encoder, relative positions, tied and untied heads."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.families.config import ModelConfig
from asyncgen.reference.load_model import load_model
from tests.parity.test_seq2seq import inputs, models

if TYPE_CHECKING:
    from pathlib import Path

DECODER = torch.tensor([[0, 5, 6], [0, 7, 8], [0, 9, 3]])


@pytest.mark.parametrize("layers", [(1, 3), (3, 1)])
@pytest.mark.parametrize("kind", ["relu", "gated-gelu"])
def test_stacks_of_different_depth(layers: tuple[int, int], kind: str, tmp_path: Path) -> None:
    theirs, ours = models(
        0, tmp_path, num_layers=layers[0], num_decoder_layers=layers[1], feed_forward_proj=kind
    )
    with torch.no_grad():
        # Without a cache: that of the reference has as many layers as the encoder.
        expected = theirs(**inputs(0), decoder_input_ids=DECODER, use_cache=False).logits
    found = ours(**inputs(0), decoder_input_ids=DECODER).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [{}, {"feed_forward_proj": "relu", "num_layers": 3}])
def test_mt5_equals_the_reference(shape: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = models(2, tmp_path, "MT5", **{"feed_forward_proj": "gated-gelu", **shape})
    assert type(ours).__name__ == "MT5ForConditionalGeneration"
    with torch.no_grad():
        expected = theirs(**inputs(2), decoder_input_ids=DECODER).logits
    found = ours(**inputs(2), decoder_input_ids=DECODER).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    assert ours.generate(**inputs(2), **options).tolist() == (
        theirs.generate(**inputs(2), **options).tolist()
    )


def test_mt5_keeps_a_head_of_its_own(tmp_path: Path) -> None:
    """Google's files say that the head is not tied, and store it."""
    theirs, _ = models(3, tmp_path, "MT5")
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    head = torch.randn(60, theirs.config.d_model)
    save_file({**load_file(file), "lm_head.weight": head}, file, metadata={"format": "pt"})
    text = config.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false')
    config.write_text(text)
    theirs.lm_head.weight = torch.nn.Parameter(head)
    with torch.no_grad():
        expected = theirs(**inputs(3), decoder_input_ids=DECODER).logits
    found: Any = load_model(tmp_path)
    logits = found(**inputs(3), decoder_input_ids=DECODER).logits
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("flag", [True, False, None])
@pytest.mark.parametrize("stored", [True, False])
def test_untied_head_is_one_that_is_stored(flag: bool | None, stored: bool, tmp_path: Path) -> None:
    theirs, _ = models(1, tmp_path, tie_word_embeddings=False)
    file, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    tensors = load_file(file)
    if stored:
        tensors["lm_head.weight"] = torch.randn(60, theirs.config.d_model)
    save_file(tensors, file, metadata={"format": "pt"})
    text = config.read_text()
    # Older files say it with this flag alone; newer ones always say "tied".
    text = text.replace('"scale_decoder_outputs": false', '"unused": 0')
    if flag is None:
        text = text.replace('"unused": 0', '"scale_decoder_outputs": false')
    else:
        text = text.replace('"tie_word_embeddings": true', f'"tie_word_embeddings": {flag}'.lower())
    config.write_text(text)
    ours = load_model(tmp_path)
    assert ours.core.config.tie_word_embeddings is not stored
    import transformers

    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = theirs(**inputs(1), decoder_input_ids=DECODER).logits
    found: Any = ours
    logits = found(**inputs(1), decoder_input_ids=DECODER).logits
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["T5", "MT5"])
@pytest.mark.parametrize(
    "changed",
    [
        {"tie_word_embeddings": None, "scale_decoder_outputs": ...},
        {"tie_word_embeddings": ..., "scale_decoder_outputs": ...},
        {"tie_word_embeddings": False, "scale_decoder_outputs": None},
        {"dense_act_fn": "relu"},
        {"dense_act_fn": "gelu"},
    ],
)
def test_derived_keys_mean_what_they_mean_to_the_reference(
    kind: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    import transformers

    models(3, tmp_path, kind)
    file = tmp_path / "config.json"
    raw = {**json.loads(file.read_text()), **changed}
    file.write_text(json.dumps({key: each for key, each in raw.items() if each is not ...}))
    if kind == "MT5" and changed.get("tie_word_embeddings", ...) is None:
        return  # null is no switch of its class
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        expected = theirs(**inputs(3), decoder_input_ids=DECODER).logits
    ours: Any = load_model(tmp_path)
    logits = ours(**inputs(3), decoder_input_ids=DECODER).logits
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_unused_tensor_names_are_ignored(tmp_path: Path) -> None:
    models(2, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for name in ("encoder", "decoder"):
        tensors[f"{name}.embed_tokens.weight"] = tensors["shared.weight"].clone()
    bias = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    tensors[bias] = torch.zeros(4, 4)
    save_file(tensors, file, metadata={"format": "pt"})
    load_model(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("d_model", 0),
        ("feed_forward_proj", "gated"),
        ("feed_forward_proj", 3),
        ("num_layers", None),
        ("relative_attention_num_buckets", 2),
        ("relative_attention_max_distance", 8),
        ("scale_decoder_outputs", "yes"),
        ("tie_word_embeddings", 1),
        ("is_gated_act", 0),
        ("dense_act_fn", "swiglu"),
        ("layer_norm_epsilon", "small"),
    ],
)
def test_complaints_name_the_key_of_the_file(key: str, value: object) -> None:
    raw = {"model_type": "t5", key: value}
    if value is None:
        assert ModelConfig.from_hf(raw).num_hidden_layers == 6
        return
    named = "relative_attention_num_buckets" if "relative" in key else key
    with pytest.raises(ModelLoadError, match=f"`{named}`"):
        ModelConfig.from_hf(raw)


def test_steps_equal_whole_rows(tmp_path: Path) -> None:
    _, ours = models(3, tmp_path)
    whole = ours(**inputs(3), decoder_input_ids=DECODER).logits
    core = ours.core
    encoded = core.encode(core.embed(inputs(3)["input_ids"]), inputs(3)["attention_mask"])
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    attention = core.attention(cache, None, encoded)
    for place in range(3):
        step = core.decode(DECODER[:, place : place + 1], torch.tensor([[place]]), attention)
        torch.testing.assert_close(step, whole[:, place], atol=1e-5, rtol=1e-4)


def test_a_copy_and_a_conversion_compute_alike(tmp_path: Path) -> None:
    _, ours = models(4, tmp_path)
    expected = ours(**inputs(4), decoder_input_ids=DECODER).logits
    twin = copy.deepcopy(ours).to(torch.float64)
    found = twin(**inputs(4), decoder_input_ids=DECODER).logits
    assert found.dtype is torch.float64
    torch.testing.assert_close(found.float(), expected, atol=1e-4, rtol=1e-4)
    again = ours(**inputs(4), decoder_input_ids=DECODER).logits
    assert torch.equal(again, expected)


def test_another_kind_of_cache_is_refused(tmp_path: Path) -> None:
    _, ours = models(5, tmp_path)
    encoded = ours.core.encode(torch.zeros(1, 2, ours.config.hidden_size))
    with pytest.raises(InvalidRequestError, match="EncoderDecoderCache"):
        ours.core.attention(DynamicCache(), None, encoded)
