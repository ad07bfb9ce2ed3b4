"""An engine is put together as its options say."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.engine.kv_cache.block_pool import CacheSize
from asyncgen.engine.options import EngineOptions
from asyncgen.engine.scheduling.scheduler import FIFOScheduler, PrefillFirstScheduler
from asyncgen.engine.setup import assembly
from asyncgen.engine.setup.assembly import assemble, plan_room
from asyncgen.errors import InvalidRequestError
from asyncgen.models.attention.paged.fused import FusedKernel
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from tests.doubles.engine import no_assistants
from tests.doubles.models import TableModel
from tests.doubles.recorders import CallRecorder
from tests.doubles.varlen import varlen_attn

if TYPE_CHECKING:
    from asyncgen.engine.core import Engine


def engine_of(**options: Any) -> Engine:
    """An engine over a table model."""
    chosen = EngineOptions(**options)
    model = TableModel()
    return assemble(model, None, chosen, plan_room(model, chosen), assistants=no_assistants())


def test_the_options_arrive() -> None:
    engine = engine_of(max_running=3, page_size=8, scheduler="prefill_first", page_sharing=False)
    batch, pool = engine._batch, engine._pool
    assert batch is not None and pool is not None
    scheduler = batch.scheduler
    assert type(scheduler) is PrefillFirstScheduler and scheduler.max_running == 3
    assert not scheduler.retain_cache_on_finish
    assert (pool.page_size, pool.sharing, pool.num_pages) == (8, False, 3 * 512 // 8)


def test_manual_eviction_lets_names_be_used_again() -> None:
    batch = engine_of(manual_eviction=True)._batch
    assert batch is not None
    assert type(batch.scheduler) is FIFOScheduler and batch.scheduler.retain_cache_on_finish


def test_pool_size_follows_max_running_or_kv_cache_memory() -> None:
    model = TableModel(context_length=100)
    assert plan_room(model, EngineOptions(max_running=2)).num_pages == 2 * 4
    room = plan_room(model, EngineOptions(page_size=4, kv_cache_memory=10 * 4 * 16))
    assert (room.num_pages, room.page_size) == (10, 4)


def test_a_foreign_model_has_no_batch() -> None:
    engine = assemble(object(), None, EngineOptions(), None)
    assert engine._batch is None and engine._pool is None and not engine.has_work


def test_on_a_cpu_nothing_is_recorded_and_steps_run_one_after_another() -> None:
    for intervals in (0, 5):
        batch = engine_of(num_q_padding_intervals=intervals)._batch
        assert batch is not None and not batch._runs_ahead and batch._runner._graphs is None
    batch = engine_of(use_async_batching=True, use_cuda_graph=False)._batch
    assert batch is not None and batch._runs_ahead
    with pytest.raises(InvalidRequestError, match="computes on cpu") as caught:
        engine_of(use_cuda_graph=True)
    assert caught.value.parameter == "use_cuda_graph"


class OnCuda:
    """A model that says that it is on a device, for the plan of its memory."""

    def __init__(self) -> None:
        self.core = TableModel(context_length=1024).core
        self.device, self.dtype = torch.device("cuda"), torch.float32


def test_a_recording_takes_a_page_that_was_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "asyncgen.engine.setup.cache_memory.device_memory", lambda device: (10**9, 10**9)
    )
    model, page = OnCuda(), 256 * 16
    assert plan_room(model, EngineOptions(max_running=2)) == CacheSize(8, 256, 1)
    assert plan_room(model, EngineOptions(kv_cache_memory=5 * page)) == CacheSize(4, 256, 1)
    assert plan_room(model, EngineOptions(kv_cache_memory=page)) == CacheSize(1, 256, 0)
    off = EngineOptions(kv_cache_memory=5 * page, use_cuda_graph=False)
    assert plan_room(model, off) == CacheSize(5, 256, 0)


def over_pages(model: OnCuda) -> PagedAttention:
    """Attention over nine pages, as a device has them."""
    return PagedAttention(
        model.core.config, PagedStorage(model.core.config, 9, 256, heads_first=False)
    )


@pytest.mark.parametrize("asked", [True, None])
def test_unsupported_cuda_graphs_are_logged_with_reason(
    asked: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    """In 32 bits there is no fused attention."""
    model = OnCuda()
    options = EngineOptions(use_cuda_graph=asked)
    attention = over_pages(model)
    with caplog.at_level(logging.INFO, "asyncgen.engine"):
        assert assembly._make_graphs(model, attention, options, CacheSize(8, 256, 1)) is None
    [record] = caplog.records
    assert record.levelno == (logging.WARNING if asked else logging.INFO)
    assert "has no kernel" in record.getMessage()


def test_recordings_are_made_for_the_rows_and_lengths_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = FusedKernel(varlen_attn, True)
    monkeypatch.setattr(
        "asyncgen.models.attention.paged.torch_attention.find_fused_kernel", lambda *_: kernel
    )
    monkeypatch.setattr(
        "asyncgen.engine.setup.assembly.CudaRecorder", lambda device: CallRecorder()
    )
    monkeypatch.setattr(
        "asyncgen.engine.setup.assembly.device_memory", lambda device: (10**9, 10**9)
    )
    model = OnCuda()
    options = EngineOptions(max_running=6, num_kv_padding_intervals=2)
    graphs = assembly._make_graphs(model, over_pages(model), options, CacheSize(8, 256, 1))
    assert graphs is not None
    graphs.warm()
    assert graphs.sizes == [(6, 2), (4, 2), (2, 2), (1, 2)]  # of the 4 pages of a context
