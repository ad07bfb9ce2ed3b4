"""The table of architectures."""

from __future__ import annotations

import pytest

from asyncgen.errors import UnsupportedModelError
from asyncgen.models.arch.registry import MODELS
from asyncgen.models.config import ModelConfig


def test_every_entry_can_be_configured_and_bears_its_name() -> None:
    for name, model in MODELS.items():
        assert model.model_type == name
        assert model.__module__ == f"asyncgen.models.arch.{name}"
        assert ModelConfig.from_hf({"model_type": name}).model_type == name


def test_nothing_can_be_configured_that_has_no_entry() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelConfig.from_hf({"model_type": "other"})
    listed = str(caught.value).rpartition("supported are ")[2].split(", ")
    assert sorted(listed) == sorted(MODELS)
