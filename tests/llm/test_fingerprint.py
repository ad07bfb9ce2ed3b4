"""Equal fingerprints are of engines that compute the same; anything else has another, or none."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
import torch

from asyncgen.llm import fingerprint
from asyncgen.llm.fingerprint import fingerprint_of
from asyncgen.native import supports
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.doubles.models import TableModel
from tests.models.build import random_config, random_model

pytestmark = pytest.mark.skipif(
    not supports(torch.float32), reason="torch's kernels promise nothing"
)


def made(name: str) -> PreTrainedModel:
    return PreTrainedModel(random_model(random_config(name)))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_every_row_of_a_table_counts(name: str) -> None:
    model = made(name)
    known = fingerprint_of(model, None)
    assert known is not None
    assert known == fingerprint_of(made(name), None)

    tables = [weight for name, weight in model.core.named_parameters() if name[:6] == "embed_"]
    assert tables
    with torch.no_grad():
        for table in tables:
            kept = table[50, 1].clone()
            table[50, 1] += 1.0  # in a row that the probe does not read
            assert fingerprint_of(model, None) != known
            table[50, 1] = kept
    assert fingerprint_of(model, None) == known


def test_foreign_models_have_no_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign: Any = TableModel()
    assert fingerprint_of(foreign, None) is None

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(fingerprint, "version", missing)
    assert fingerprint_of(made("llama"), None) is None
