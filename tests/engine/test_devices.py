"""The defaults of an engine for a device are a row of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.engine.setup.assembly import kind_of
from tests.doubles.recorders import CallRecorder

if TYPE_CHECKING:
    import pytest


def test_a_cpu_records_nothing_and_waits_for_its_tokens() -> None:
    kind = kind_of(torch.device("cpu"))
    assert (kind.page_size, kind.prefill_chunk, kind.heads_first) == (32, 256, True)
    assert kind.recorder is None and not kind.runs_ahead


def test_cuda_has_pages_as_its_kernels_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = "asyncgen.engine.setup.assembly.CudaRecorder"
    monkeypatch.setattr(recorder, lambda device: CallRecorder())
    kind = kind_of(torch.device("cuda", 1))
    assert (kind.page_size, kind.heads_first, kind.runs_ahead) == (256, False, True)
    assert kind.prefill_chunk == 2048
    assert kind.recorder is not None
    assert isinstance(kind.recorder(torch.device("cuda", 1)), CallRecorder)


def test_any_other_device_has_tokens_first() -> None:
    kind = kind_of(torch.device("mps"))
    assert (kind.page_size, kind.heads_first, kind.recorder) == (32, False, None)
