"""JSON of a stranger is measured before it is parsed: it takes no more than real files do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import asyncgen
from asyncgen.checkpoints import checkpoint, json_size
from asyncgen.checkpoints.checkpoint import open_checkpoint
from asyncgen.checkpoints.hub import read_json, read_text
from asyncgen.checkpoints.json_size import MOST_AS_TEXT, MOST_ENTRIES, MOST_LISTS, check_letters
from asyncgen.errors import ModelLoadError
from tests.cases import for_each
from tests.checkpoints.strange_folders import SMALL
from tests.checkpoints.whole_folder import save_whole

if TYPE_CHECKING:
    from collections.abc import Callable

READ = [name for name in SMALL if name.endswith(".json")]
BOMBS = {
    "lists": ('{"x": [' + "[]," * MOST_LISTS + "[]]}", "lists and objects"),
    "objects": ('{"x": [' + '{"a":1},' * MOST_LISTS + "{}]}", "lists and objects"),
    "deep lists": ("[" * (MOST_LISTS + 1), "lists and objects"),
    "numbers": ('{"x": [' + "1," * (MOST_ENTRIES + 1) + "1]}", "entries"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that loads, with the settings of embeddings."""
    return save_whole(tmp_path_factory.mktemp("whole"))


@for_each("name", READ)
def test_every_file_is_measured_before_it_is_parsed(name: str, whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / name.replace("/", " "))
    if name == "model.safetensors.index.json":
        (folder / "model.safetensors").unlink()
    content = BOMBS["deep lists"][0]
    if name == "tokenizer.json":
        content = "[" * 1_500_001
    (folder / name).write_text(content)
    with pytest.raises(ModelLoadError, match=f"{name} has .* lists and objects; at most"):
        asyncgen.load_model(folder, device="cpu", progress=False)
        asyncgen.load_tokenizer(folder)


@for_each("kind", BOMBS)
def test_json_that_would_take_gigabytes(kind: str, tmp_path: Path) -> None:
    content, said = BOMBS[kind]
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(ModelLoadError, match=f"config.json has .* {said}; at most"):
        read_json(file)


def test_json_of_the_allowed_size(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"x": [' + "[]," * 1000 + "1," * 1000 + "1]}")
    assert len(read_json(file)["x"]) == 2001


def test_letters_of_which_a_text_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_size, "MOST_AS_TEXT", 4096)
    file, size = Path("it.json"), 1024
    check_letters(file, b"a" * (size + 9))
    check_letters(file, b"a" * (size - 4) + "\U0001f600".encode())
    check_letters(file, b"a" * size + "\u00e9".encode())
    check_letters(file, "\u6f22".encode() * (size // 2))
    for content in (
        b"a" * size + "\U0001f600".encode(),
        "\u6f22".encode() * 2049,
    ):
        with pytest.raises(ModelLoadError, match="it.json has letters that would take"):
            check_letters(file, content)


def test_a_file_of_wide_letters_is_refused_before_it_is_a_text(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    with file.open("wb") as stream:
        stream.write("\U0001f600".encode())
        stream.truncate(MOST_AS_TEXT // 4 + 99)
    with pytest.raises(ModelLoadError, match=r"tokenizer.json has letters that would take"):
        read_text(file)


def header(file: Path, text: str) -> None:
    """Write a file of weights with a header alone."""
    content = text.encode() + b" " * (-len(text.encode()) % 8)
    file.write_bytes(len(content).to_bytes(8, "little") + content)


EMPTY = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
HEADERS: dict[str, tuple[Callable[[], str], str]] = {
    "tensors": (
        lambda: "{" + ",".join(f'"{i}":{EMPTY}' for i in range(350_000)) + "}",
        "1050001 lists and objects; at most 1048576",
    ),
    "other names": (
        lambda: (
            '{"__metadata__":{'
            + ",".join(f'"{i}":"a"' for i in range(60_000))
            + f'}},"a":{EMPTY}}}'
        ),
        "entries; at most 500",
    ),
    "a long shape": (
        lambda: '{"a":{"dtype":"F32","shape":[0' + ",1" * 60_000 + '],"data_offsets":[0,0]}}',
        "entries; at most 500",
    ),
    "lists": (lambda: "[" * 1_100_000, "lists and objects; at most 1048576"),
}


@for_each("kind", HEADERS)
def test_headers_of_weights_are_measured_before_they_are_parsed(kind: str, tmp_path: Path) -> None:
    make, said = HEADERS[kind]
    header(tmp_path / "model.safetensors", make())
    with pytest.raises(ModelLoadError, match=f"model.safetensors has .*{said}"):
        open_checkpoint(tmp_path)


def test_a_header_that_is_as_long_as_the_file_says(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.write((10**8).to_bytes(8, "little"))
        stream.truncate(2 * 10**8)
    with pytest.raises(ModelLoadError, match="a header of 100000000 bytes; at most 67108864"):
        open_checkpoint(tmp_path)


def shards(folder: Path, names: list[str]) -> None:
    weight_map = {f"{number}": name for number, name in enumerate(names)}
    index: dict[str, Any] = {"weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_more_files_of_weights_than_any_model_has(tmp_path: Path) -> None:
    shards(tmp_path, [f"{number}.safetensors" for number in range(1001)])
    with pytest.raises(ModelLoadError, match=r"index.json names 1001 files; at most 1000 are read"):
        open_checkpoint(tmp_path)


def test_the_tensors_of_all_files_count_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_MOST_TENSORS", 20)
    names = [f"{number}.safetensors" for number in range(3)]
    for name in names:
        header(tmp_path / name, "{" + ",".join(f'"{i}":{EMPTY}' for i in range(9)) + "}")
    shards(tmp_path, names[:2])
    assert len(open_checkpoint(tmp_path).tensors) == 9
    shards(tmp_path, names)
    with pytest.raises(ModelLoadError, match=r"2.safetensors has 28 lists and objects; at most 8"):
        open_checkpoint(tmp_path)
