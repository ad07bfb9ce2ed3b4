"""A header of weights is read as the safetensors library reads it, and lets other threads run."""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from safetensors import SafetensorError, safe_open

from asyncgen.checkpoints.checkpoint import open_checkpoint
from asyncgen.checkpoints.safetensors_header import _BITS, read_entries
from asyncgen.errors import ModelLoadError
from asyncgen.runtime.wanted import UnwantedError, asking
from tests.cases import for_each

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = '{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}'
OTHER = '{"dtype": "BF16", "shape": [], "data_offsets": [16, 18]}'
WHOLE = f'{{"__metadata__":{{"format":"pt"}},"a":{ENTRY},"b\\u00e9.c":{OTHER}}}'
PARTS = (
    *('"', "{", "}", "[", "]", ",", ":", "0", "1", "-", "00", "2.0", "1e1", "true", "null", "18"),
    *(
        "\\",
        "\\u00e9",
        "\\ud800",
        "é",
        "\0",
        " ",
        "\n",
        "\t",
        '"a"',
        '"dtype"',
        '"U8"',
        '"F4"',
        '"F6_E2M3"',
    ),
    *("18446744073709551616", "9223372036854775808", '"extra":[{"x":1}],', ENTRY, f'"a":{ENTRY},'),
    *('"b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},', '"dtype":"F32",', "NaN", "Infinity"),
    *('"shape":[2,2]', '"shape":[4]', '"shape":[0,9223372036854775807,4]', "F64", "16", "[]"),
)


def write(file: Path, header: bytes, size: int = 18) -> None:
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * size)


def refused_by_library(file: Path) -> bool:
    try:
        with safe_open(file, framework="pt"):
            return False
    except (SafetensorError, OSError, ValueError):
        return True


def spoiled(pick: random.Random) -> bytes:
    """Change a header in one to three places."""
    text = WHOLE
    for _ in range(pick.choice([1, 1, 1, 2, 3])):
        begin = pick.randrange(len(text) + 1)
        end = min(len(text), begin + pick.choice([0, 0, 1, 1, 2, 5, 40]))
        text = text[:begin] + pick.choice(PARTS) + text[end:]
    content = text.encode("utf-8", "surrogatepass")
    if pick.random() < 0.1:
        place = pick.randrange(len(content))
        content = content[:place] + bytes([pick.randrange(256)]) + content[place + 1 :]
    return content


def compare(seed: int, folder: Path, rounds: int) -> int:
    """Read spoiled headers here and there; return how many both take."""
    pick, file, taken = random.Random(seed), folder / "model.safetensors", 0
    for _ in range(rounds):
        header = spoiled(pick)
        write(file, header, size := pick.choice([18, 18, 18, 18, 16, 17, 0]))
        try:
            entries, _ = read_entries(header, size)
        except (ValueError, RecursionError) as error:
            if "twice" not in str(error):
                assert refused_by_library(file), (header, error)
            continue
        assert not refused_by_library(file), header
        with safe_open(file, framework="pt") as stored:
            assert sorted(stored.keys()) == sorted(entry.name for entry in entries)
            for entry in entries:
                assert tuple(stored.get_slice(entry.name).get_shape()) == entry.shape
                assert stored.get_slice(entry.name).get_dtype() == entry.kind
        taken += 1
    return taken


def test_what_the_library_takes_and_nothing_else(tmp_path: Path) -> None:
    assert compare(1, tmp_path, 1500) > 10


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 8))
def test_many_headers(seed: int, tmp_path: Path) -> None:
    compare(seed, tmp_path, 10_000)


@for_each("kind", _BITS)
def test_every_dtype_has_the_librarys_size(kind: str, tmp_path_factory: Any) -> None:
    size = _BITS[kind]
    header = {"a": {"dtype": kind, "shape": [8], "data_offsets": [0, size]}}
    file = tmp_path_factory.mktemp("kind") / "model.safetensors"
    write(file, json.dumps(header).encode(), size)
    assert not refused_by_library(file)
    entries, _ = read_entries(json.dumps(header).encode(), size)
    assert entries == [(0, size, "a", kind, (8,))]


ODD = {
    "a name twice": (f'{{"a":{ENTRY},"a":{ENTRY}}}', "'a' is there twice"),
    "a name twice, once escaped": (f'{{"a":{ENTRY},"\\u0061":{ENTRY}}}', "'a' is there twice"),
    "a key twice": (f'{{"a":{ENTRY[:-1]},"dtype":"F32"}}}}', "'a' has a key twice"),
    "a hole": ('{"a":{"dtype":"U8","shape":[8],"data_offsets":[8,16]}}', "begins at byte 8, 0"),
    "overlapping": (
        f'{{"a":{ENTRY},"b":{{"dtype":"U8","shape":[8],"data_offsets":[8,16]}}}}',
        "begins at byte 8, 16 is the next",
    ),
    "less than the file": ('{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}', "8 bytes, and"),
    "a size that is another": (
        '{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,16]}}',
        "has 16 bytes, and its shape and dtype 64 bits",
    ),
    "a dtype of nobody": ('{"a":{"dtype":"F3","shape":[8],"data_offsets":[0,16]}}', "is F3, which"),
    "too many numbers": (
        '{"a":{"dtype":"U8","shape":[9223372036854775807,4,0],"data_offsets":[0,0]}}',
        "more numbers than there can be",
    ),
    "a list": ("[]", "'{' must be at character 0"),
    "more behind": (f'{{"a":{ENTRY}}}x', "more behind"),
}


@for_each("kind", ODD)
def test_the_refusal_says_why(kind: str, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("folder")
    header, said = ODD[kind]
    write(folder / "model.safetensors", header.encode(), 16)
    with pytest.raises(
        ModelLoadError, match=r"model.safetensors is truncated or corrupt"
    ) as caught:
        open_checkpoint(folder)
    assert said in str(caught.value)


def many(file: Path, count: int) -> None:
    """Write a file of so many tensors, with names as those of experts."""
    header = {
        f"model.layers.{i // 4096}.mlp.experts.{i % 4096}.down_proj.weight_scale": {
            "dtype": "F32",
            "shape": [1],
            "data_offsets": [4 * i, 4 * i + 4],
        }
        for i in range(count)
    }
    write(file, json.dumps(header).encode(), 4 * count)


def test_nobody_waits_for_the_rest_of_a_header(tmp_path: Path) -> None:
    many(tmp_path / "model.safetensors", 10_000)
    asked = iter([True, True, False])
    with asking(lambda: next(asked)), pytest.raises(UnwantedError):
        open_checkpoint(tmp_path)
    assert next(asked, None) is None


@pytest.mark.gate
def test_other_threads_run_while_the_largest_header_is_read(tmp_path: Path) -> None:
    many(tmp_path / "model.safetensors", 2**18)
    over, gaps = threading.Event(), [0.0]

    def tick() -> None:
        last = time.monotonic()
        while not over.wait(0.005):
            gaps.append((now := time.monotonic()) - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.thread_time()
    try:
        assert len(open_checkpoint(tmp_path).tensors) == 2**18
    finally:
        used = time.thread_time() - begun
        over.set()
        thread.join()
    assert used < 6, used
    assert max(gaps) < 0.8, max(gaps)
