"""Tests of `asyncgen.checkpoints.gguf.file_choice`: which file is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from asyncgen.checkpoints.gguf.file_choice import is_single, only_model, patterns_of
from asyncgen.errors import ModelLoadError

if TYPE_CHECKING:
    from pathlib import Path

NAMES = (
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m.Q8_0.gguf",
    "m-f16-00001-of-00002.gguf",
    "m-f16-00002-of-00002.gguf",
    "mmproj-m-f16.gguf",
    "UD-Q2_K_XL/m-UD-Q2_K_XL-00001-of-00002.gguf",
    "UD-Q2_K_XL/m-UD-Q2_K_XL-00002-of-00002.gguf",
    "README.md",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("Q4_K_M", NAMES[0]),
        ("q4_k_s", NAMES[1]),
        ("Q8_0", NAMES[2]),
        ("F16", NAMES[3]),
        ("m-f16.gguf", NAMES[3]),
        ("m.Q8_0.gguf", NAMES[2]),
        ("UD-Q2_K_XL", NAMES[6]),
        ("Q4_K", None),
        ("README.md", None),
    ],
)
def test_a_part_is_a_name_or_its_ending(folder: Path, part: str, name: str | None) -> None:
    found = only_model(folder, patterns_of(part))
    assert found == (None if name is None else folder / name)


def test_several_models_are_listed(folder: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"4 models \('m-Q4_K_M.gguf', .*path of one"):
        only_model(folder)


def test_only_names_that_end_so_are_models(tmp_path: Path) -> None:
    assert is_single(tmp_path / "x.gguf")
    assert not is_single(tmp_path / "x.safetensors")
    assert only_model(tmp_path) is None
