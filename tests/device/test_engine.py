"""The checks of a busy engine notice an engine in which nothing works."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from asyncgen import native
from asyncgen.models.decoder import DecoderLM
from tests.device import engine
from tests.device.context import Context
from tests.device.plan import ITEMS
from tests.device.stand_in import KIND
from tests.doubles.sinks import RecordingSink
from tests.doubles.varlen import varlen_attn

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in of `tests.device.stand_in`, for a test."""
    monkeypatch.setattr(native, "kernels", None)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_attn)
    monkeypatch.setattr("asyncgen.engine.setup.assembly.kind_of", lambda device: KIND)


def test_an_answer_that_failed_is_infinitely_far(tmp_path: Path) -> None:
    busy = engine._Engine(Context("cpu", tmp_path), torch.float32)
    silent, failed = RecordingSink(), RecordingSink()
    failed.put_nowait(RuntimeError("an illegal memory access was encountered"))
    assert busy.margin([1, 2], silent) == busy.margin([1, 2], failed) == math.inf
    _, sink = busy.add([5, 6, 7], max_new_tokens=4)
    busy.run()
    assert busy.margin([5, 6, 7], sink) < 1e-3
    assert busy.margin([7, 6, 5], sink) > 0.1


@pytest.mark.parametrize("name", ["ahead", "company", "long", "poison", "lane"])
def test_no_check_holds_where_every_pass_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def illegal(*arguments: object, **options: object) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(DecoderLM, "decode_packed", illegal)
    monkeypatch.setattr(DecoderLM, "decode", illegal)
    item = next(each for each in ITEMS if each.name == name)
    try:
        found = getattr(engine, name)(Context("cpu", tmp_path), item)
    except (RuntimeError, AssertionError, IndexError):
        return
    assert found.holds is False
