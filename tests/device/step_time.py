"""Divide the time of a decode step into kernels, gaps between them, and the host."""

from __future__ import annotations

import random
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity

from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.engine.sampling.random_draws import HashDraws
from asyncgen.generation.logits.filters import keep_top_p
from asyncgen.models.attention.paged.fused import FusedRows
from asyncgen.models.attention.paged.kernel_probe import find_fused_kernel
from asyncgen.models.attention.paged.packed_rows import PlacedRow
from asyncgen.models.kernels.norm import make_scaler
from asyncgen.models.kernels.rope import make_rotate
from asyncgen_apps.bench.random_models import asyncgen_model
from tests.device.context import Finding
from tests.device.machine import timed, wait
from tests.device.speed import checkpoint_of
from tests.engine.batches import Bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.device.context import Context
    from tests.device.plan import Item

__all__ = ["parts", "profile"]

STEPS = 20
TOP = 8
"""Kernels that are named."""


def profile(context: Context, item: Item) -> Finding:
    """Profile decode steps of few and many streams."""
    sizes = context.sizes
    model = asyncgen_model(
        str(checkpoint_of(context, item.shape).folder), sizes.dtype, context.device
    )
    config = model.config
    position = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    figures: dict[str, Any] = {}
    said = []
    for streams in sizes.streams[:2]:
        length = min(sizes.prompts) + 3 * STEPS
        bench = Bench(
            model,
            # Room for all to run: an engine keeps some pages for those that grow.
            pages=streams * (length // 256 + 2) + 1,
            page_size=256,
            position_bytes=position * model.dtype.itemsize,
            prefill_chunk_size=1024,
            max_running=streams,
        )
        draw = random.Random(1)
        for _ in range(streams):
            prompt = draw.choices(range(config.vocab_size // 2), k=min(sizes.prompts))
            bench.add(prompt, max_new_tokens=3 * STEPS)
        for _ in range(2 * STEPS):
            if bench.batch._num_decoding == streams:
                break
            bench.engine.step()
        assert bench.batch._num_decoding == streams
        # Sizes are recorded when they have been wanted for some steps.
        for _ in range(STEPS):
            bench.engine.step()
        figures[str(streams)] = found = _profiled(context, bench)
        bench.engine.abort_all("cancelled")
        top = ", ".join(f"{each['name'][:40]} {each['share']:.0%}" for each in found["top"][:3])
        said.append(
            f"{streams}: {found['step_ms']:.2f} ms a step, the device computes "
            f"{found['busy_ms']:.2f} and the host waits {found['waited_ms']:.2f} ({top})"
        )
    return Finding(None, "streams " + "; ".join(said), figures)


def _profiled(context: Context, bench: Bench) -> dict[str, Any]:
    """Times of some steps: as they are, and what the profiler sees in as many more."""
    is_cpu = context.device == "cpu"
    wait(context.device)
    start = perf_counter()
    for _ in range(STEPS // 2):
        bench.engine.step()
    wait(context.device)
    step = (perf_counter() - start) / (STEPS // 2)
    activities = [ProfilerActivity.CPU]
    if not is_cpu:
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as seen:
        for _ in range(STEPS // 2):
            bench.engine.step()
        wait(context.device)
    own = "self_cpu_time_total" if is_cpu else "self_device_time_total"
    # An operator has the time of its kernels as well, so on a device only those count.
    events = [each for each in seen.key_averages() if is_cpu or each.device_type.name != "CPU"]
    times = {each.key: float(getattr(each, own)) for each in events}
    busy = sum(times.values()) or 1.0
    waited = sum(
        float(each.self_cpu_time_total)
        for each in seen.key_averages()
        if each.key.endswith("Synchronize")
    )
    calls = {each.key: each.count for each in events}
    top = sorted(times, key=lambda name: -times[name])[:TOP]
    per_step = 1000 * STEPS // 2  # microseconds of all steps to milliseconds of one
    return {
        "step_ms": 1000 * step,
        "busy_ms": busy / per_step,
        "waited_ms": waited / per_step,
        "launches": sum(count for name, count in calls.items() if times[name]) / (STEPS // 2),
        "top": [
            {
                "name": name,
                "share": times[name] / busy,
                "ms": times[name] / per_step,
                "calls": calls[name] / (STEPS // 2),
            }
            for name in top
        ],
    }


def parts(context: Context, item: Item) -> Finding:
    """Parts of a step as they are, beside other ways to compute the same, in microseconds."""
    device, sizes = context.device, context.sizes
    rows, long = sizes.streams[1], max(sizes.prompts)
    figures: dict[str, float] = {}

    def measure(name: str, call: Callable[[], object]) -> None:
        figures[name] = 1e6 * timed(device, call, 20)

    with torch.no_grad():
        _measure_attention(context, rows, long, measure)
        _measure_layers(context, rows, measure)
        _measure_sampling(context, rows, measure)
    said = ", ".join(f"{name} {value:.0f}" for name, value in figures.items())
    return Finding(None, f"µs for {rows} rows: {said}", figures)


def _drawn(context: Context, *shape: int) -> torch.Tensor:
    dtype = getattr(torch, context.sizes.dtype)
    return torch.randn(shape, device=context.device, dtype=torch.float32).to(dtype)


def _measure_attention(
    context: Context, rows: int, long: int, measure: Callable[[str, Callable[[], object]], None]
) -> None:
    """Of single tokens over long texts: as chosen, over copies, and without a mask."""
    from dataclasses import replace

    from asyncgen import ModelConfig
    from tests.models.build import random_config

    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    heads |= {"hidden_size": 4096, "num_hidden_layers": 1}
    if context.device == "cpu":
        heads = {"num_hidden_layers": 1}
    config = ModelConfig.from_hf(random_config("llama", **heads))
    pages = -(-(long + 1) // 256)
    dtype = getattr(torch, context.sizes.dtype)
    storage = PagedStorage(
        config, rows * pages, 256, device=context.device, dtype=dtype, heads_first=False
    )
    storage.data.normal_()
    kernel = find_fused_kernel(config, storage)
    if kernel is None:
        return
    width = config.num_attention_heads + 2 * config.num_key_value_heads
    for count in (1, rows):
        placed = [
            PlacedRow(row, long - 1, 1, list(range(row * pages, (row + 1) * pages)))
            for row in range(count)
        ]
        given = _drawn(context, count, width, config.head_dim)
        laid = FusedRows(placed, storage, None, kernel)
        measure(f"attention of {count} x {long}", lambda: laid.compute(0, given, None))  # noqa: B023
        if kernel.reads_pages:
            copied = replace(kernel, reads_pages=False, options={**kernel.options})
            other = FusedRows(placed, storage, None, copied)
            measure(f"the same over copies, {count}", lambda: other.compute(0, given, None))  # noqa: B023


def _measure_layers(
    context: Context, rows: int, measure: Callable[[str, Callable[[], object]], None]
) -> None:
    """Norms, rotary positions and gates, as they are and by torch's own functions."""
    hidden, width = (4096, 14336) if context.device != "cpu" else (256, 688)
    stream, weight = _drawn(context, rows, hidden), _drawn(context, hidden)
    out = torch.empty_like(stream)
    scaler = make_scaler(weight, hidden, 1e-5)
    measure("norm", lambda: scaler.into(stream, out))
    measure("torch.rms_norm", lambda: torch.rms_norm(stream, (hidden,), weight, 1e-5))
    gate = _drawn(context, rows, 2 * width)
    first, second = gate.chunk(2, dim=-1)
    measure("gate", lambda: torch.mul(torch.nn.functional.silu(first), second))
    heads = _drawn(context, rows, 40, 2, 64)
    cos, sin = _drawn(context, rows, 1, 2, 64), _drawn(context, rows, 1, 2, 64)
    turn = make_rotate(heads)
    measure("rotary", lambda: turn(heads, cos, sin))
    matrix = _drawn(context, width, hidden)
    measure("product", lambda: stream @ matrix.t())


def _measure_sampling(
    context: Context, rows: int, measure: Callable[[str, Callable[[], object]], None]
) -> None:
    """Greedy, drawn and filtered, over the whole vocabulary."""
    vocabulary, device = context.sizes.vocabulary, context.device
    scores = 3 * torch.randn(rows, vocabulary, device=device)
    keys = torch.arange(rows, device=device)
    draws = HashDraws(vocabulary, torch.device(device))
    measure("argmax", lambda: scores.max(-1))
    measure("draw", lambda: draws(scores, keys))
    column = torch.full((rows, 1), 0.9, dtype=torch.float64, device=device)
    measure("top-p", lambda: keep_top_p(scores, column))
