"""The table of architectures."""

from __future__ import annotations

from importlib import import_module

import pytest

from asyncgen.errors import UnsupportedModelError
from asyncgen.families.arch.registry import FAMILIES
from asyncgen.families.config import ModelConfig


def test_every_entry_bears_the_name_of_its_file() -> None:
    for name, model in FAMILIES.items():
        assert model.model_type == name
        assert import_module(f"asyncgen.families.arch.{name}").FAMILY is model


def test_unknown_model_type_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelConfig.from_hf({"model_type": "other"})
    listed = str(caught.value).rpartition("supported are ")[2].split(", ")
    assert sorted(listed) == sorted(FAMILIES)
