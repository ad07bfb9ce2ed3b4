"""Loading: every sound checkpoint, and what is said of the others."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.errors import InvalidRequestError, ModelLoadError, UnsupportedModelError
from asyncgen.reference.load_model import load_model, load_tokenizer, set_seed
from tests.doubles.checkpoints import save_checkpoint, save_tensors
from tests.doubles.hub import Repository, StandInHub
from tests.doubles.tokenizers import save_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")


IDS = torch.tensor([[3, 17, 25, 40, 8, 91, 5], [60, 2, 33, 7, 7, 12, 80]])


def test_generation_config(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    derived = load_model(tmp_path).generation_config
    assert derived.eos_token_id == 2 and derived.temperature is None
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "do_sample": true}')
    assert load_model(tmp_path).generation_config.temperature == 0.5


@pytest.mark.parametrize(
    ("dtype", "loaded"),
    [
        (None, torch.bfloat16),
        ("auto", torch.bfloat16),
        ("float32", torch.float32),
        (torch.float16, torch.float16),
    ],
)
def test_dtype(tmp_path: Path, dtype: str | torch.dtype | None, loaded: torch.dtype) -> None:
    save_checkpoint(tmp_path, dtype="bfloat16")
    model = load_model(tmp_path, dtype=dtype)
    assert model.dtype is loaded
    assert model(IDS).logits.dtype is loaded


def test_bad_dtype_and_device(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    with pytest.raises(InvalidRequestError, match="`dtype` is 'int4'"):
        load_model(tmp_path, dtype="int4")
    for device in ("gpu", "cuda:99", "tpu:0", -5):
        with pytest.raises(InvalidRequestError, match="`device` is .*cannot be used .*use 'cpu'"):
            load_model(tmp_path, device=device)


def test_unsupported_model_type(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "rwkv"}')
    with pytest.raises(UnsupportedModelError, match="'rwkv': supported .*gpt2, .*llama"):
        load_model(tmp_path)


def test_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="has no config.json, so it is no checkpoint"):
        load_model(tmp_path)


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_adapter_beside_weights_is_not_passed_over(is_whole: bool, tmp_path: Path) -> None:
    """With `peft`, transformers adds it to the weights."""
    if is_whole:
        save_checkpoint(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    for use in (
        lambda: load_model(tmp_path),
        lambda: asyncgen.quantize_checkpoint(tmp_path, tmp_path / "packed", to="int8"),
        lambda: asyncgen.LLM(tmp_path, device="cpu", progress=False).start(),
    ):
        with pytest.raises(ModelLoadError, match=r"adapter_config.json: .* merge it into them"):
            use()


def test_quantised_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, quantization_config={"quant_method": "hqq"})
    with pytest.raises(ModelLoadError, match=r"is quantised \(hqq\)"):
        load_model(tmp_path)


def test_stored_copy_of_a_tied_head(tmp_path: Path) -> None:
    tensors = save_checkpoint(tmp_path, tie_word_embeddings=True)
    save_tensors(
        tmp_path, {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    )
    assert load_model(tmp_path)(IDS).logits.shape == (2, 7, 96)


def test_files_stay_closed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, shards=2)
    model = load_model(tmp_path, device="cpu")
    expected = model(IDS).logits
    # The model owns its weights: the files may go, or be overwritten in place.
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(b"")
    assert torch.equal(model(IDS).logits, expected)


def test_demo() -> None:
    model, tokenizer = load_model("demo", device="cpu"), load_tokenizer("demo")
    assert model.name_or_path == tokenizer.name_or_path == "demo"
    ids = tokenizer("Once upon a time", return_tensors="pt")
    sequences = model.generate(**ids, max_new_tokens=5, do_sample=False)
    assert isinstance(sequences, torch.Tensor)
    assert sequences.shape[1] == ids.input_ids.shape[1] + 5


def test_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "files")
    save_tokenizer(tmp_path / "files", "byte_level")
    files = {file.name: file.read_bytes() for file in (tmp_path / "files").iterdir()}
    with StandInHub({"owner/model": Repository(files, token="secret")}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        options: Any = {"token": "secret", "revision": "main", "cache_dir": tmp_path / "cache"}
        tokenizer = load_tokenizer("owner/model", **options)
        assert not any(path.endswith(".safetensors") for path in hub.paths("GET"))
        model = load_model("owner/model", **options)
    assert model.name_or_path == tokenizer.name_or_path == "owner/model"
    assert torch.equal(model(IDS).logits, load_model(tmp_path / "files")(IDS).logits)
    again = load_model("owner/model", cache_dir=tmp_path / "cache", local_files_only=True)
    assert torch.equal(model(IDS).logits, again(IDS).logits)


def test_set_seed() -> None:
    numpy = pytest.importorskip("numpy")
    draws = []
    for _ in range(2):
        set_seed(7)
        draws.append((random.random(), torch.rand(1).item(), float(numpy.random.rand())))
    assert draws[0] == draws[1]
    for bad in (-1, 2**32, 1.5, True, "7"):
        with pytest.raises(InvalidRequestError, match="`seed` is .*from 0 to"):
            set_seed(bad)  # type: ignore[arg-type]


def test_config_values_are_plain_json(tmp_path: Path) -> None:
    save_checkpoint(tmp_path)
    assert json.loads(json.dumps(load_model(tmp_path).config.to_dict()))["hidden_size"] == 32
