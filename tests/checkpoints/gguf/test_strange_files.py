"""Each key and each tensor of GGUF files replaced: the same model as before, or a refusal."""

from __future__ import annotations

import random
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import asyncgen
from asyncgen.checkpoints.gguf.gguf_file import open_gguf
from asyncgen.errors import AsyncgenError, ModelLoadError
from tests.cases import for_each
from tests.checkpoints.gguf.making import write_gguf
from tests.checkpoints.gguf.test_every_entry import tiny_parts
from tests.checkpoints.gguf.test_gguf_file import header, text
from tests.checkpoints.packed.one_matrix import Bounded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
NAN, INF = float("nan"), float("inf")
ODD: list[Any] = [
    *(None, True, False, -1, 0, 1, 3, 2**31 - 1, 2**31, 2**63 - 1, 1.5, NAN, INF, 1e-300),
    *("", "a", "a" * 100_000, "\0", [1], [-1], [0] * 4, [2**31 - 1] * 4, [1.5] * 4, [NAN] * 4),
    *(["a"], [""] * 4, ["a"] * 200_000, [7] * 200_000, [True] * 4),
]


@for_each(
    "kind, size, count, named",
    [
        (0, 1, 200 * MIB, "`llama.attention.head_count_kv` ends at byte"),
        (0, 1, 100 * MIB, "head_count_kv` is an array of 104857600 numbers, 4000000 are allowed"),
        (4, 4, 20 * MIB, "head_count_kv` is an array of 20971520 numbers"),
        (12, 8, 5_000_000, "head_count_kv` is an array of 5000000 numbers"),
        (8, 8, 3_000_000, "head_count_kv` is an array of 3000000 texts, 2000000 are allowed"),
        (8, 8, 2**62, "head_count_kv` is an array of 4611686018427387904 texts"),
        (5, 4, 2**62, "head_count_kv` would end at byte"),
    ],
)
def test_arrays_that_no_model_has_are_refused_unread(
    kind: int, size: int, count: int, named: str, tmp_path: Path
) -> None:
    """A list of a byte each takes 8 bytes, and a tuple before it as many."""
    file = tmp_path / "bad.gguf"
    key = text(b"llama.attention.head_count_kv")
    with file.open("wb") as stream:
        stream.write(header(keys=1) + key + struct.pack("<IIQ", 9, kind, count))
        stream.truncate(min(stream.tell() + size * count, 300 * MIB))
    with Bounded(named, -200 * MIB), pytest.raises(ModelLoadError, match=named) as caught:
        open_gguf(file)
    assert "bad.gguf" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_arrays_share_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "bad.gguf"
    with file.open("wb") as stream:
        stream.write(header(keys=3))
        for number in range(3):
            array = struct.pack("<IIQ", 9, 1, 1_500_000) + bytes(1_500_000)
            stream.write(text(b"key %d" % number) + array)
    with Bounded(), pytest.raises(ModelLoadError, match="`key 2` is an array of 1500000 numbers"):
        open_gguf(file)


Made = tuple[dict[str, Any], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Metadata and tensors of a model with its tokenizer."""
    metadata, tensors = tiny_parts(tmp_path_factory.mktemp("gguf") / "hf")
    count = len(metadata["tokenizer.ggml.tokens"])
    metadata |= {
        "general.alignment": 32,
        "tokenizer.ggml.token_type": [1] * count,
        "tokenizer.ggml.scores": [0.0] * count,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    return metadata, tensors


def metadata_cases(metadata: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys, and a value for each; the architecture alone cannot be written as something else."""
    for key in metadata:
        for value in ODD:
            if key != "general.architecture" or (isinstance(value, str) and value):
                yield key, value


def tensor_cases(tensors: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray | None]]:
    """Names of tensors, and what stands in their place."""
    for name, one in tensors.items():
        yield name, None
        for kind in (np.float16, np.float64, np.int8, np.int16, np.int32, np.int64):
            yield name, one.astype(kind)
        others = [one.reshape(-1), one[None], one[:1], one[..., :1], np.concatenate((one, one))]
        for other in (*others, one.T):
            if other.shape != one.shape:
                yield name, other


def is_refused(file: Path, case: object) -> bool:
    """Load a file's model and tokenizer; tell whether it was refused, with its name."""
    with Bounded(case):
        try:
            model = asyncgen.load_model(file, dtype="float32", progress=False)
            model(torch.tensor([[5, 6, 7]]))
            asyncgen.load_tokenizer(file).encode_ids("the fox")
        except AsyncgenError as error:
            assert file.name in str(error), (case, str(error)[:500])
            assert len(str(error)) < 1500, case
            return True
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the writer
@pytest.mark.parametrize(
    "count", [5, pytest.param(None, marks=(pytest.mark.soak, pytest.mark.timeout(600)))]
)
def test_strange_files_are_read_or_refused(made: Made, count: int | None, tmp_path: Path) -> None:
    metadata, tensors = made
    draw, file = random.Random(11), tmp_path / "strange.gguf"
    by_key, by_tensor = list(metadata_cases(metadata)), list(tensor_cases(tensors))
    if count is not None:
        by_key, by_tensor = draw.sample(by_key, count), draw.sample(by_tensor, count)
    refused = 0
    for key, value in by_key:
        others = {name: one for name, one in metadata.items() if name != key or value is not None}
        others |= {} if value is None else {key: value}
        try:
            write_gguf(file, others, tensors)
        except (ValueError, TypeError, KeyError, OverflowError, struct.error):
            continue  # the writer has no such type
        refused += is_refused(file, (key, str(value)[:80]))
    for name, other in by_tensor:
        whole = {each: one for each, one in tensors.items() if each != name}
        if other is not None:
            whole[name] = np.ascontiguousarray(other)
        write_gguf(file, metadata, whole)
        is_same = other is not None and other.shape == tensors[name].shape
        is_wrong = is_refused(file, (name, None if other is None else (other.shape, other.dtype)))
        is_head = other is None and name == "output.weight"  # the table of embeddings may be one
        if not is_head:
            assert is_wrong != (is_same and other is not None and other.dtype.kind == "f"), name
        refused += is_wrong
    assert refused > 0.4 * (len(by_key) + len(by_tensor))
