"""Tests of `asyncgen.checkpoints.gguf.gguf_file`: metadata, shards, and malicious files."""

from __future__ import annotations

import random
import struct
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from asyncgen.checkpoints.gguf.config import config_of
from asyncgen.checkpoints.gguf.generation_defaults import generation_values
from asyncgen.checkpoints.gguf.gguf_file import PackedTensor, as_written, open_gguf
from asyncgen.checkpoints.gguf.tokenizer import read_gguf_tokenizer
from asyncgen.errors import AsyncgenError, ModelLoadError
from asyncgen.families.config import ModelConfig
from tests.checkpoints.gguf.making import Writer, write_gguf

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.context_length": 64,
    "llama.embedding_length": 32,
    "llama.block_count": 1,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "general.sampling.temp": 0.7,
    "general.sampling.top_k": 20,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<end>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 3,
    "tokenizer.chat_template": "{{ messages }}",
}
TENSORS: dict[str, np.ndarray] = {
    "token_embd.weight": np.arange(128, dtype=np.float32).reshape(4, 32),
    "blk.0.attn_q.weight": np.ones((32, 32), np.float16),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "model.gguf", METADATA, TENSORS)


def header(*, tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(
    name: bytes = b"x", sides: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0
) -> bytes:
    return text(name) + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, kind, offset)


def stored_bytes(tensor: PackedTensor) -> bytes:
    end = tensor.offset + tensor.num_bytes
    return tensor.file.read_bytes()[tensor.offset : end]


def test_reads_metadata_and_tensor_positions(file: Path) -> None:
    model = open_gguf(file)
    metadata = model.metadata
    assert metadata.text("general.architecture") == "llama"
    assert metadata.whole("llama.block_count") == 1
    assert metadata.texts("tokenizer.ggml.tokens") == ["a", "b", "ab", "<end>"]
    assert metadata.numbers("tokenizer.ggml.token_type") == [1, 1, 1, 3]
    assert metadata.number("nothing") is None
    for name, tensor in TENSORS.items():
        found = model.tensors[name]
        assert found.shape == tensor.shape
        assert stored_bytes(found) == tensor.tobytes()
    assert as_written(float(np.float32(1e-5))) == 1e-5
    values = generation_values(metadata)
    assert values == {"eos_token_id": 3, "temperature": 0.7, "top_k": 20, "do_sample": True}


@pytest.mark.parametrize("key", ["text", "whole", "number", "flag", "texts", "numbers"])
def test_values_of_the_wrong_kind_are_refused_by_key(file: Path, key: str) -> None:
    metadata = open_gguf(file).metadata
    wrong = "tokenizer.ggml.tokens" if key != "texts" else "llama.block_count"
    with pytest.raises(ModelLoadError, match=f"model.gguf: `{wrong}` is .* must be"):
        getattr(metadata, key)(wrong)


def test_shards_are_one_model(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "model.gguf", "llama", split_max_tensors=1, small_first_shard=False)
    for key, value in METADATA.items():
        if key != "general.architecture":
            writer.value(key, value)
    for name, tensor in TENSORS.items():
        writer.add_tensor(name, tensor)
    writer.finish()
    files = sorted(tmp_path.glob("*.gguf"))
    assert len(files) == 2
    for file in files:
        model = open_gguf(file)
        assert model.file == files[0]
        assert set(model.tensors) == set(TENSORS)
        assert (
            stored_bytes(model.tensors["blk.0.attn_q.weight"])
            == TENSORS["blk.0.attn_q.weight"].tobytes()
        )
    files[1].unlink()
    with pytest.raises(ModelLoadError, match=r"1 of the 2 files .*00002-of-00002"):
        open_gguf(files[0])


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "first four bytes"),
    "other": (b"PK\3\4" + bytes(60), "no GGUF file"),
    "version 1": (header(version=1), "version 1"),
    "big endian": (header(version=3 << 24), "big-endian"),
    "tensors": (header(tensors=2**60), "number of tensors"),
    "keys": (header(keys=2**60), "number of keys"),
    "no keys": (header(keys=3), "key 0"),
    "long key": (header(keys=1) + struct.pack("<Q", 2**60), "key 0 is 1152921504606846976 bytes"),
    "long text": (
        header(keys=1) + text(b"k") + struct.pack("<IQ", 8, 2**60),
        "`k` is 1152921504606846976 bytes",
    ),
    "text beyond": (header(keys=1) + text(b"k") + struct.pack("<IQ", 8, 99), "`k` would end"),
    "array of numbers": (
        header(keys=1) + text(b"k") + struct.pack("<IIQ", 9, 4, 2**60),
        "`k` would end",
    ),
    "array of texts": (
        header(keys=1) + text(b"k") + struct.pack("<IIQ", 9, 8, 2**60),
        "`k` is an array of 1152921504606846976 texts",
    ),
    "text in array": (
        header(keys=1) + text(b"k") + struct.pack("<IIQQ", 9, 8, 2, 2**63),
        "`k` would end",
    ),
    "array of arrays": (
        header(keys=1) + text(b"k") + struct.pack("<IIQ", 9, 9, 1),
        "`k` is an array of arrays",
    ),
    "type": (header(keys=1) + text(b"k") + struct.pack("<I", 77), "`k` is of type 77"),
    "twice": (header(keys=2) + 2 * (text(b"k") + struct.pack("<IB", 0, 1)), "'k' is there twice"),
    "alignment": (
        header(keys=1) + text(b"general.alignment") + struct.pack("<II", 4, 0),
        "general.alignment` is 0",
    ),
    "odd alignment": (
        header(keys=1) + text(b"general.alignment") + struct.pack("<II", 4, 24),
        "general.alignment` is 24",
    ),
    "sides": (header(tensors=1) + entry(sides=(1,) * 5), "5 sides"),
    "no sides": (header(tensors=1) + entry(sides=()), "0 sides"),
    "empty side": (header(tensors=1) + entry(sides=(0, 2**62)), "side of 0"),
    "huge side": (header(tensors=1) + entry(sides=(2**62, 2**62)), "begins at byte"),
    "unknown type": (header(tensors=1) + entry(kind=99), "number 99"),
    "IQ type": (header(tensors=1) + entry(kind=16), "IQ2_XXS, which is not read"),
    "block": (header(tensors=1) + entry(sides=(33,), kind=2), "blocks of Q4_0 have 32"),
    "offset": (header(tensors=1) + entry(offset=2**62), "begins at byte"),
    "crooked": (header(tensors=1) + entry(offset=3) + bytes(999), "no multiple of 32"),
    "overlap": (
        header(tensors=2) + entry(b"x") + entry(b"y", offset=32) + bytes(999),
        "inside of another",
    ),
    "tensor twice": (
        header(tensors=2) + entry(b"x") + entry(b"x", offset=128) + bytes(999),
        "'x' is there twice",
    ),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name_at_once(name: str, tmp_path: Path) -> None:
    data, complaint = HOSTILE[name]
    file = tmp_path / "bad.gguf"
    file.write_bytes(data)
    start = time.perf_counter()
    with pytest.raises(ModelLoadError, match=complaint) as caught:
        open_gguf(file)
    assert time.perf_counter() - start < 1
    assert "bad.gguf" in str(caught.value)
    assert len(str(caught.value)) < 1500


def is_refused(read: Callable[[Path], object], file: Path) -> bool:
    """Tell whether a file is refused with an error of ours; any other error fails the test."""
    try:
        read(file)
    except AsyncgenError:
        return True
    return False


READERS: tuple[Callable[[Path], object], ...] = (
    lambda file: ModelConfig.from_hf(config_of(open_gguf(file))),
    lambda file: generation_values(open_gguf(file).metadata),
    read_gguf_tokenizer,
)
"""Everything that is made of metadata alone."""


def mutate(data: bytes, draw: random.Random) -> bytes:
    """A few bytes changed, put in, taken out, or the end cut off."""
    changed = bytearray(data)
    head = len(data) - sum(tensor.nbytes for tensor in TENSORS.values())
    ways: list[Callable[[int], None]] = [
        lambda place: changed.__setitem__(place, draw.randrange(256)),
        lambda place: changed.__setitem__(place, changed[place] ^ (1 << draw.randrange(8))),
        lambda place: changed.__setitem__(slice(place, place), draw.randbytes(8)),
        lambda place: changed.__delitem__(slice(place, place + draw.randrange(1, 9))),
        lambda place: changed.__setitem__(slice(place, place + 8), b"\xff" * 8),
        lambda place: changed.__delitem__(slice(place, None)),
    ]
    for _ in range(draw.randrange(1, 4)):
        draw.choice(ways)(draw.randrange(min(head, len(changed)) or 1) if changed else 0)
        changed = changed or bytearray(1)
    return bytes(changed)


@pytest.mark.parametrize(
    "count", [100, pytest.param(2000, marks=(pytest.mark.soak, pytest.mark.timeout(300)))]
)
def test_mutated_files_are_read_or_refused_by_name(file: Path, count: int, tmp_path: Path) -> None:
    data, draw = file.read_bytes(), random.Random(7)
    other = tmp_path / "changed.gguf"
    refused = 0
    for _ in range(count):
        other.write_bytes(mutate(data, draw))
        refused += sum(is_refused(read, other) for read in READERS) > 0
    assert 0.3 * count < refused <= count
