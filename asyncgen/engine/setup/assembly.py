"""Build an engine around a loaded model: memory, scheduler, batch and side lane.

It knows no thread and loads nothing; `DeviceKind` is all that differs on an accelerator.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from asyncgen.cache.layer_groups import plan_groups
from asyncgen.cache.paged_storage import PagedStorage, page_bytes
from asyncgen.cache.states import StateStorage, slot_bytes
from asyncgen.engine.batch.batch import Batch
from asyncgen.engine.batch.runner import BatchRunner
from asyncgen.engine.core import Engine
from asyncgen.engine.kv_cache.block_pool import BlockPool, CacheSize, max_blocks
from asyncgen.engine.kv_cache.state_slots import SlotPool
from asyncgen.engine.lane.foreign_run import ForeignRun
from asyncgen.engine.lane.lane import SideLane
from asyncgen.engine.lane.strategy_run import StepRun
from asyncgen.engine.metrics import EngineMetrics
from asyncgen.engine.requests.request import clock
from asyncgen.engine.sampling.sampler import BatchSampler
from asyncgen.engine.scheduling.prefill_budget import PrefillBudget
from asyncgen.engine.scheduling.prefill_cost import PrefillCost
from asyncgen.engine.scheduling.scheduler import FIFOScheduler, PrefillFirstScheduler, Scheduler
from asyncgen.engine.setup.cache_memory import budget_bytes, plan_pages, share_slots
from asyncgen.engine.setup.model_in_use import attach
from asyncgen.errors import InvalidRequestError
from asyncgen.families.plans.state_plan import keeps_states
from asyncgen.models.attention.paged.paged_attention import PagedAttention
from asyncgen.models.cuda_graphs import CudaRecorder, DecodeGraphs, page_sizes, row_sizes, why_not
from asyncgen.models.kernels.linear import Linear
from asyncgen.models.mixers.hybrid_context import PackedHybrid
from asyncgen.models.mixers.packed_states import PackedStates
from asyncgen.runtime.device_memory import device_memory
from asyncgen.runtime.user_code import guard_methods, run_user_code

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from asyncgen.engine.lane.assistants import Assistants
    from asyncgen.engine.lane.lane import LaneRun
    from asyncgen.engine.options import EngineOptions
    from asyncgen.engine.requests.admission import Admission
    from asyncgen.engine.requests.request import Request
    from asyncgen.families.config import ModelConfig
    from asyncgen.models.cuda_graphs import Recorder
    from asyncgen.runtime.progress import ProgressOption
    from asyncgen.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """Defaults of an engine for a kind of device.

    Attributes:
        page_size: Tokens of a page.
        prefill_chunk: Prompt tokens of a step, enough to keep the device busy.
        prefill_beside: Prompt tokens of a step for which running streams wait.
        most_chunks: Most chunks between two tokens of running streams, while many requests wait.
        snapshot_tokens: Prompt tokens between two state snapshots.
        heads_first: Layout of a page; see `PagedStorage`.
        runs_ahead: Whether a step begins before the tokens of the last one are read.
        recorder: Makes the recorder of decode steps; ``None`` if they are not recorded.
    """

    page_size: int
    prefill_chunk: int
    prefill_beside: int
    most_chunks: int
    snapshot_tokens: int
    heads_first: bool
    runs_ahead: bool
    recorder: Callable[[torch.device], Recorder] | None


def kind_of(device: torch.device) -> DeviceKind:
    """Return the defaults for a device."""
    if device.type == "cuda":
        # ``varlen_attn`` asks for 256 tokens of a page of a table, or a multiple.
        return DeviceKind(
            page_size=256,
            prefill_chunk=2048,
            prefill_beside=2048,
            most_chunks=1,
            snapshot_tokens=2048,
            heads_first=False,
            runs_ahead=True,
            recorder=CudaRecorder,
        )
    is_cpu = device.type == "cpu"
    return DeviceKind(
        page_size=32,
        prefill_chunk=256,
        prefill_beside=192,
        most_chunks=4,
        snapshot_tokens=1024,
        heads_first=is_cpu,
        runs_ahead=False,
        recorder=None,
    )


_log = logging.getLogger("asyncgen.engine")

_PAGES_OF_NOTHING = 1 << 18
"""Pages of a model without keys and values; a page that was in use costs some 400 bytes."""

_GATHERED_SHARE = 64
"""Divisor of a device's memory that recorded steps may gather keys in."""


def plan_room(model: Any, options: EngineOptions) -> CacheSize:
    """Plan the pages that fit the memory budget, beside a loaded model of this library.

    Raises:
        InvalidRequestError: The budget is too small for a page, or more than the device has; or
            graphs were asked for and the device has none.
    """

    size = options.page_size or kind_of(model.device).page_size
    config = model.core.config
    if options.packs_pages:
        _refuse_unpackable(model)
    if not config.attending:
        return _room_for_states(model, options, size)
    rows, snapshots, memory = _slots(model, options)
    positions = getattr(config, "max_position_embeddings", None)
    spare = int(_records(model, options))  # 0 for a hybrid
    windows = plan_groups(config).windows
    wanted = None
    if positions:
        a_row = max_blocks(windows, size, positions, _prefill_chunk(model, options))
        wanted = options.max_running * a_row + spare
    each = page_bytes(config, size, model.dtype, is_packed=options.packs_pages)
    num_pages = plan_pages(
        memory,
        page_bytes=each,
        wanted=wanted,
        device=model.device,
        least=len(windows),
    )
    if rows is not None and wanted is not None and options.kv_cache_memory is None:
        num_pages = min(num_pages, wanted)
    # A page that the shortest text needs comes first.
    spare = min(spare, num_pages - len(windows))
    outside = Fraction(page_bytes(config, size, model.dtype), each)
    return CacheSize(num_pages - spare, size, spare, windows, rows, snapshots, outside)


def _refuse_unpackable(model: Any) -> None:
    """Refuse 8-bit pages for a model that never reads pages again."""
    config, reason = model.core.config, None
    if config.is_encoder_decoder:
        reason = "requests to an encoder-decoder model keep caches of their own"
    elif not config.attending:
        reason = "the layers of this model keep states, and no keys and values"
    elif any(options.is_bidirectional for options in config.attention):
        reason = "this model reads a text in both directions, in one piece"
    if reason is not None:
        raise InvalidRequestError("kv_cache_dtype", "int8", f"{reason}; use 'auto'")


def _slots(model: Any, options: EngineOptions) -> tuple[int | None, int, int | float | None]:
    """Return rows, snapshots, and the memory left for pages, of a hybrid model.

    States get at most half of the memory, as a row needs pages as well. Other models have no
    rows: ``None``.
    """

    memory = options.kv_cache_memory
    if not keeps_states(model.core.config):
        return None, 0, memory
    each = slot_bytes(model.core.config, model.dtype)
    available = budget_bytes(memory, model.device)
    num_slots = min(_wanted_slots(options), max(available // 2 // each, 2))
    left = available - num_slots * each
    if left <= 0:
        shown = f"unset, which is {available} bytes here" if memory is None else memory
        allowed = f"two states of one text take {2 * each} bytes, beside which there must be pages"
        raise InvalidRequestError("kv_cache_memory", shown, allowed)
    rows, snapshots = share_slots(num_slots, options.max_running, options.state_snapshots)
    return rows, snapshots, left


def _wanted_slots(options: EngineOptions) -> int:
    """Return the slots with which no row waits, and those that were asked for snapshots."""
    beside = options.state_snapshots
    return 2 * options.max_running + (options.max_running if beside is None else beside)


def _room_for_states(model: Any, options: EngineOptions, page_size: int) -> CacheSize:
    """Plan the slots that fit the memory budget; pages hold nothing, so there are enough."""

    _records(model, options)
    num_slots = plan_pages(
        options.kv_cache_memory,
        page_bytes=slot_bytes(model.core.config, model.dtype),
        wanted=_wanted_slots(options),
        device=model.device,
        least=2,
        unit="what a text has of states, two of them,",
    )
    rows, snapshots = share_slots(num_slots, options.max_running, options.state_snapshots)
    return CacheSize(_PAGES_OF_NOTHING, page_size, num_slots=rows, num_snapshots=snapshots)


def _records(model: Any, options: EngineOptions) -> bool:
    """Tell whether decode steps are recorded, as far as device and model allow.

    Raises:
        InvalidRequestError: It was asked for, and is not possible.
    """
    if options.use_cuda_graph and keeps_states(model.core.config):
        raise InvalidRequestError(
            "use_cuda_graph", True, "steps of a model whose layers keep states are not recorded"
        )
    if options.use_cuda_graph and options.packs_pages:
        raise InvalidRequestError(
            "use_cuda_graph", True, "steps over pages in 8 bits (`kv_cache_dtype`) are not recorded"
        )
    is_able = kind_of(model.device).recorder is not None and not keeps_states(model.core.config)
    is_able = is_able and not options.packs_pages
    if options.use_cuda_graph and not is_able:
        raise InvalidRequestError(
            "use_cuda_graph", True, f"the model computes on {model.device}, which has no such thing"
        )
    return is_able and options.use_cuda_graph is not False


def assemble(
    model: Any,
    tokenizer: Tokenizer | None,
    options: EngineOptions,
    room: CacheSize | None,
    *,
    assistants: Assistants | None = None,
    is_closing: Callable[[], bool] = bool,
    admission: Admission | None = None,
    progress: ProgressOption = None,
) -> Engine:
    """Build an engine; allocate the memory of its pages.

    Args:
        model: The loaded model.
        tokenizer: Its tokenizer; ``None`` where only ids are wanted.
        options: How requests share steps and memory.
        room: Memory for keys and values; ``None`` for a foreign model, which has its own.
        assistants: Source of draft models; ``None`` for a foreign model.
        is_closing: Tells whether the decode thread was asked to leave, for a foreign model.
        admission: Counts the requests.
        progress: If it can be called, it reports long prompts.

    Raises:
        InvalidRequestError: The scheduler is no `Scheduler`.
    """
    metrics, pool, batch = EngineMetrics(), None, None
    if room is not None:
        pool = _make_pool(model, options, room)
        metrics.pages_total, metrics.page_size = pool.num_pages, room.page_size
        metrics.cache_dtype = options.kv_cache_dtype
        if callable(getattr(model.core, "decode_packed", None)):
            batch = _make_batch(model, tokenizer, options, room, pool, metrics, progress)
    start_alone = _runs(model, tokenizer, options, assistants, is_closing, metrics)
    lane = SideLane(
        start_alone,
        max_running=options.max_running,
        pool=pool,
        may_reserve=None if batch is None else batch.scheduler.may_reserve,
        metrics=metrics,
    )
    engine = Engine(lane, batch, pool=pool, admission=admission, metrics=metrics)
    if room is not None:  # no engine guards the weights of a foreign model
        attach(model, engine)
    return engine


def _make_pool(model: Any, options: EngineOptions, room: CacheSize) -> BlockPool:
    """Make the pages, and the slots of a model that keeps states."""

    has_slots = room.num_slots is not None
    distance = max(kind_of(model.device).snapshot_tokens // room.page_size, 1)
    return BlockPool(
        room.num_pages,
        room.page_size,
        # Without snapshots no text can go on from the state of another one.
        sharing=options.page_sharing and not (has_slots and options.state_snapshots == 0),
        windows=room.windows,
        slots=None if room.num_slots is None else SlotPool(room.num_slots, room.num_snapshots),
        snapshot_pages=options.snapshot_pages or distance,
    )


def _runs(
    model: Any,
    tokenizer: Tokenizer | None,
    options: EngineOptions,
    assistants: Assistants | None,
    is_closing: Callable[[], bool],
    metrics: EngineMetrics,
) -> Callable[[Request], LaneRun]:
    """Return the constructor of runs in the side lane: our strategies, or a foreign model."""

    common: dict[str, Any] = {
        "model": model,
        "tokenizer": tokenizer,
        "clock": clock,
        "metrics": metrics,
    }
    if assistants is None:
        return partial(ForeignRun, **common, is_closing=is_closing)
    return partial(
        StepRun, **common, prefill_chunk=_prefill_chunk(model, options), assistants=assistants
    )


def _prefill_chunk(model: Any, options: EngineOptions) -> int:
    return options.prefill_chunk_size or kind_of(model.device).prefill_chunk


def _make_batch(
    model: Any,
    tokenizer: Tokenizer | None,
    options: EngineOptions,
    room: CacheSize,
    pool: BlockPool,
    metrics: EngineMetrics,
    progress: ProgressOption,
) -> Batch:
    """Make the shared batch of a model that computes packed rows."""

    core, kind = model.core, kind_of(model.device)
    attention = _make_context(model, options, room)
    wants_ahead = options.use_async_batching
    return Batch(
        _make_scheduler(options, pool),
        BatchRunner(core, attention, _make_graphs(model, attention, options, room)),
        BatchSampler(core.config.vocab_size, model.device),
        tokenizer=tokenizer,
        prefill_budget=PrefillBudget(
            _prefill_chunk(model, options),
            # A chunk size that was given also limits the time that running streams wait.
            1 if options.prefill_chunk_size else kind.most_chunks,
            prefill_cost(core),
            beside=options.prefill_chunk_size or kind.prefill_beside,
        ),
        prefix_caching=options.prefix_caching,
        manual_eviction=options.manual_eviction,
        runs_ahead=kind.runs_ahead if wants_ahead is None else wants_ahead,
        metrics=metrics,
        progress=progress if callable(progress) else None,
    )


def _make_context(model: Any, options: EngineOptions, room: CacheSize) -> Any:
    """Make the context that rows attend in; allocate its memory."""

    config, device, dtype = model.core.config, model.device, model.dtype
    states = None
    if room.num_slots is not None:
        num_slots = 2 * room.num_slots + room.num_snapshots
        states = PackedStates(StateStorage(config, num_slots, device=device, dtype=dtype))
        if not config.attending:
            return states
    storage = PagedStorage(
        config,
        room.num_pages + room.num_spare,
        room.page_size,
        device=device,
        dtype=dtype,
        heads_first=kind_of(device).heads_first,
        is_packed=options.packs_pages,
    )
    attention = PagedAttention(config, storage)
    return attention if states is None else PackedHybrid(attention, states)


def _make_graphs(
    model: Any, attention: PagedAttention, options: EngineOptions, room: CacheSize
) -> DecodeGraphs | None:
    """Make recordings of decode steps, where they are wanted and possible."""
    if not _records(model, options):
        return None

    core, kernel = model.core, attention.fused
    reason = why_not(core, kernel) if room.num_spare else "`kv_cache_memory` pays for one page"
    if kernel is None or reason is not None:
        level = logging.WARNING if options.use_cuda_graph else logging.INFO
        _log.log(level, "decode steps run without CUDA graphs: %s", reason)
        return None
    make_recorder = kind_of(model.device).recorder
    assert make_recorder is not None
    positions = getattr(core.config, "max_position_embeddings", None)
    most = room.num_pages if positions is None else min(room.blocks(positions), room.num_pages)
    most = attention.storage.plan.blocks_seen(most, room.page_size)
    return DecodeGraphs(
        core,
        attention.storage,
        kernel,
        make_recorder(model.device),
        rows=row_sizes(options.max_running, options.num_q_padding_intervals),
        pages=page_sizes(
            most,
            room.page_size,
            options.num_kv_padding_intervals,
            copied=not kernel.reads_pages,
        ),
        scratch=room.num_pages,
        most_gathered=device_memory(model.device)[1] // _GATHERED_SHARE,
    )


def prefill_cost(core: Any) -> PrefillCost | None:
    """Count the multiplications of a prompt token; ``None`` for a test double without layers."""
    if not isinstance(core, nn.Module):
        return None
    config: ModelConfig = core.config  # type: ignore[assignment]
    products = sum(
        module.in_features * module.out_features
        for module in core.modules()
        if isinstance(module, Linear) and module is not core.lm_head
    )
    each = 2 * config.num_attention_heads * config.head_dim
    return PrefillCost(products, [(each, config.window(layer)) for layer in config.attending])


def _make_scheduler(options: EngineOptions, pool: BlockPool) -> Scheduler:
    """Make the scheduler that was asked for."""

    named: dict[str, type[Scheduler]] = {
        "fifo": FIFOScheduler,
        "prefill_first": PrefillFirstScheduler,
    }
    chosen = options.scheduler
    kind = named[chosen] if isinstance(chosen, str) else chosen
    if not issubclass(kind, Scheduler):
        raise InvalidRequestError("scheduler", kind, "a subclass of Scheduler")
    scheduler = run_user_code(kind, pool)
    guard_methods(scheduler)
    scheduler.max_running = options.max_running
    if pool.slots is not None:
        scheduler.max_running = min(options.max_running, pool.slots.num_rows)
    if options.manual_eviction:
        scheduler.retain_cache_on_finish = True
    return scheduler
