from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer, pre_tokenizers

from asyncgen import load_model
from asyncgen_apps.bench.checkpoints import SHAPES, byte_alphabet, write_checkpoint
from asyncgen_apps.bench.shape import ModelShape

if TYPE_CHECKING:
    from pathlib import Path

TINY = ModelShape(hidden=32, layers=2, heads=4, kv_heads=2, ffn=48, vocab=600)
FAMILIES = ("gemma2", "gemma3", "phi3", "qwen3-moe", "gpt-oss", "mamba2", "qwen3_5")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_checkpoint(folder, TINY, "float32")
    return folder


def test_the_shapes_have_the_sizes_they_are_named_after() -> None:
    assert SHAPES["5m"].num_parameters == pytest.approx(5e6, rel=0.1)
    assert SHAPES["135m"].num_parameters == pytest.approx(135e6, rel=0.01)
    for name in FAMILIES:
        assert SHAPES[name].num_parameters == pytest.approx(135e6, rel=0.05)


def test_the_alphabet_is_that_of_byte_level_tokenizers() -> None:
    assert sorted(byte_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert byte_alphabet()[ord("a")] == "a" and byte_alphabet()[ord(" ")] == "Ġ"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_stored_in_the_type_and_shape_asked_for(tmp_path: Path, dtype: str) -> None:
    write_checkpoint(tmp_path, TINY, dtype)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == dict(TINY.tensors())
    assert {tensor.dtype for tensor in stored.values()} == {getattr(torch, dtype)}


def test_the_same_seed_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TINY, "float32")
    for file in folder.iterdir():
        assert (tmp_path / file.name).read_bytes() == file.read_bytes(), file.name


def test_generation_never_ends_by_itself(folder: Path) -> None:
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] is None


def test_the_tokenizer_is_exact_and_made_of_words(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == TINY.vocab
    text = "hello wörld 🦊\n two"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    words = [tokenizer.decode([number]) for number in range(384, TINY.vocab)]
    assert all(word.startswith(" ") for word in words)
    assert len(set(words)) == len(words)
    # Merges reach the words: a text of the vocabulary takes far fewer tokens than bytes.
    sentence = "".join(words[:50])
    assert len(tokenizer.encode(sentence).ids) < len(sentence) * 0.6


def test_transformers_loads_it(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.num_parameters() == TINY.num_parameters
    assert len(tokenizer) == TINY.vocab


@pytest.mark.parametrize("name", FAMILIES)
def test_a_shape_is_a_model_of_its_family(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        "hidden": 32,
        "layers": 4,  # of which one attends, where not all do
        "heads": 4,
        "kv_heads": 2,
        "ffn": 48,
        "vocab": 600,
    }
    shape = replace(SHAPES[name], **sizes, head=8 if SHAPES[name].head else 0)
    write_checkpoint(tmp_path, shape, "float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert theirs.config.model_type == shape.style.model_type
    assert theirs.num_parameters() == shape.num_parameters
    ids = torch.tensor([[5, 17, 300, 44]])
    with torch.no_grad():
        expected = theirs(ids).logits
    found = load_model(tmp_path, dtype="float32")(ids).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
