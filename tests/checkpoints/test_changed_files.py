"""A folder whose files are replaced while it is loaded is no model: it is refused by name."""

from __future__ import annotations

import importlib
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import asyncgen
from asyncgen.checkpoints.stored_files import SAVING
from asyncgen.errors import ModelLoadError
from asyncgen.text import tokenizer_files
from tests.cases import for_each
from tests.checkpoints.gguf.making import write_gguf
from tests.checkpoints.gguf.test_every_entry import tiny_parts

if TYPE_CHECKING:
    from collections.abc import Callable

model_loader: Any = importlib.import_module("asyncgen.reference.model_loader")
DEMO = Path(asyncgen.__file__).parent / "demo"


def turned(file: Path) -> bytes:
    """Return the file with other numbers in the same places."""
    rows = {name: torch.roll(each, 1, 0) for name, each in load_file(file).items()}
    save_file(rows, file.with_name("other"), metadata={"format": "pt"})
    return file.with_name("other").read_bytes()


def replace_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    content = turned(file)
    assert len(content) == file.stat().st_size
    (folder / "new").write_bytes(content)
    (folder / "new").replace(file)


def write_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    before = file.stat().st_mtime_ns
    file.write_bytes(turned(file))
    os.utime(file, ns=(before + 1000, before + 1000))  # clocks of files may be coarse


def replace_settings(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "new").write_text(json.dumps({**settings, "rope_theta": 77.0}))
    (folder / "new").replace(folder / "config.json")


def begin_saving(folder: Path) -> None:
    (folder / SAVING).touch()


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "weights, replaced": (replace_weights, "model.safetensors was changed while"),
    "weights, in their place": (write_weights, "model.safetensors was changed while"),
    "settings": (replace_settings, "config.json was changed while"),
    "settings, removed": (lambda folder: (folder / "config.json").unlink(), "was changed while"),
    "a save that goes on": (begin_saving, "was saved to while it was loaded"),
}


@for_each("kind", CHANGES)
def test_files_that_are_replaced_between_two_looks(
    kind: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their headers fit each other, so nothing else would tell."""
    folder = shutil.copytree(DEMO, tmp_path_factory.mktemp("folder") / "it")
    change, said = CHANGES[kind]
    known = model_loader.open_checkpoint

    def opened(place: Any) -> Any:
        found = known(place)
        change(folder)
        return found

    monkeypatch.setattr(model_loader, "open_checkpoint", opened)
    with pytest.raises(ModelLoadError, match=f"{said}.*load it again"):
        asyncgen.load_model(folder, device="cpu", progress=False)
    monkeypatch.undo()
    (folder / SAVING).unlink(missing_ok=True)
    if kind != "settings, removed":
        asyncgen.load_model(folder, device="cpu", progress=False)


NUMBERS: dict[str, tuple[dict[str, int], bool]] = {
    "another number, as FAT and FUSE give": ({"st_ino": 7}, True),
    "another drive, as one that is mounted again": ({"st_dev": 7, "st_ino": 7}, True),
    "a link more, as of a backup": ({"st_ctime_ns": 7}, True),
    "another file of the same size and time": ({"st_ino": 7, "st_ctime_ns": 7}, False),
}


@for_each("kind", NUMBERS)
def test_a_file_that_stays_may_get_another_number(
    kind: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(DEMO, tmp_path_factory.mktemp("folder") / "it")
    change, stays = NUMBERS[kind]
    known = os.stat

    def looked(file: Any, *args: Any, **more: Any) -> Any:
        found = known(file, *args, **more)
        if Path(str(file)).name != "config.json":
            return found
        fields = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        return SimpleNamespace(**{**fields, **change})

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", looked)
        if stays:
            asyncgen.load_model(folder, device="cpu", progress=False)
            return
        with pytest.raises(ModelLoadError, match=r"config.json was changed while"):
            asyncgen.load_model(folder, device="cpu", progress=False)


def test_a_gguf_file_that_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meta, tensors = tiny_parts(tmp_path / "hf")
    file = write_gguf(tmp_path / "it.gguf", meta, tensors)
    other = write_gguf(
        tmp_path / "new.gguf", meta, {name: each[::-1] for name, each in tensors.items()}
    )
    known = model_loader.open_gguf

    def opened(place: Any) -> Any:
        found = known(place)
        other.replace(file)
        return found

    monkeypatch.setattr(model_loader, "open_gguf", opened)
    with pytest.raises(ModelLoadError, match=r"it.gguf was changed while it was loaded"):
        asyncgen.load_model(file, device="cpu", progress=False)


def test_a_tokenizer_of_two_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(DEMO, tmp_path / "it")
    known = tokenizer_files.read_backend

    def read(*args: Any, **more: Any) -> Any:
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "new").write_text(json.dumps({**settings, "padding_side": "right"}))
        (folder / "new").replace(folder / "tokenizer_config.json")
        return known(*args, **more)

    monkeypatch.setattr(tokenizer_files, "read_backend", read)
    with pytest.raises(ModelLoadError, match=r"tokenizer_config.json was changed while"):
        asyncgen.load_tokenizer(folder)
