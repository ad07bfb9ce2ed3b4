"""Ropes by kind of layer, however a family's files have them, turn as the reference turns them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from tests.families.arch.families import make

if TYPE_CHECKING:
    from pathlib import Path

transformers = pytest.importorskip("transformers")

_LINEAR = {"rope_type": "linear", "factor": 8.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
_LOCAL = {"rope_local_base_freq": 1234.0}
KEYS: list[dict[str, Any]] = [
    {},
    {"rope_theta": 7e4, **_LOCAL},
    {"rope_theta": 7e4, "rope_scaling": _LINEAR},
    {"rope_theta": 7e4, "rope_scaling": _YARN, **_LOCAL},
    {"rope_theta": 7e4, "rope_parameters": {"full_attention": _LINEAR}},
    {"rope_parameters": {"sliding_attention": {**_LINEAR, "rope_theta": 9e3}}},
    {
        "rope_theta": 7e4,
        "rope_parameters": {
            "full_attention": {**_YARN, "rope_theta": 2e4},
            "sliding_attention": {"rope_type": "default"},
        },
        **_LOCAL,
    },
]
NOT_BY_KIND: list[dict[str, Any]] = [
    {"rope_parameters": {**_LINEAR, "rope_theta": 3e5}},
    {"rope_theta": 7e4, "rope_parameters": {**_YARN, "rope_theta": 3e5}, **_LOCAL},
]


@pytest.mark.parametrize("keys", KEYS + NOT_BY_KIND, ids=lambda keys: ",".join(keys) or "none")
@pytest.mark.parametrize("family", ["gemma3_text", "olmo3"])
def test_ropes_by_kind_of_layer(
    family: str, keys: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(family, tmp_path, num_hidden_layers=6)
    path = tmp_path / "config.json"
    file = json.loads(path.read_text(encoding="utf-8"))
    del file["rope_parameters"]
    path.write_text(json.dumps(file | keys), encoding="utf-8")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(3, 96, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(ids).logits
    with caplog.at_level("WARNING", "asyncgen"):
        ours = asyncgen.load_model(tmp_path, dtype="float32")
    torch.testing.assert_close(ours(ids).logits, expected, atol=1e-4, rtol=1e-4)
    assert ("`rope_parameters` are not read" in caplog.text) == (keys in NOT_BY_KIND)
