"""Describe the machine: device, versions, missing packages, speed of memory and units."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from asyncgen_apps.bench.random_models import bandwidth as memory_bandwidth
from tests.device.context import Finding

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.device.context import Context
    from tests.device.plan import Item

__all__ = ["bandwidth", "machine", "timed", "wait"]

NEEDED = ("torch", "tokenizers", "safetensors", "anyio")
USEFUL = ("transformers", "pytest", "triton", "hypothesis", "trio")


def machine(context: Context, item: Item) -> Finding:
    """Name everything that a figure depends on."""
    versions = {name: _version(name) for name in (*NEEDED, *USEFUL)}
    figures: dict[str, object] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "versions": versions,
        "threads": torch.get_num_threads(),
    }
    name = platform.machine()
    if context.device != "cpu":
        if not torch.cuda.is_available():
            raise RuntimeError("there is no CUDA device; --device cpu tests the command itself")
        facts = torch.cuda.get_device_properties(context.device)
        name = facts.name
        figures |= {
            "device": facts.name,
            "capability": f"{facts.major}.{facts.minor}",
            "gigabytes": facts.total_memory / 1e9,
            "multiprocessors": facts.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    figures["attention"] = _attention()
    missing = [name for name, version in versions.items() if version is None]
    without = f"; without {', '.join(missing)}" if missing else ""
    says = f"{name}, torch {versions['torch']}, Python {platform.python_version()}{without}"
    return Finding(None, says, figures)


def bandwidth(context: Context, item: Item) -> Finding:
    """Copy a block, multiply matrices; the median of some."""
    device, sizes = context.device, context.sizes
    rate = memory_bandwidth(device, sizes.megabytes)
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    left = torch.randn(sizes.product, sizes.product, device=device, dtype=dtype)
    right = torch.randn_like(left)
    seconds = timed(device, lambda: left @ right)
    operations = 2 * sizes.product**3 / seconds
    says = f"{rate / 1e9:.0f} GB/s, {operations / 1e12:.1f} TFLOP/s in {dtype}".replace(
        "torch.", ""
    )
    figures = {"bytes_per_second": rate, "operations_per_second": operations}
    return Finding(None, says, figures)


def timed(device: str, call: Callable[[], object], runs: int = 10) -> float:
    """Seconds of a call on the device, the median of some, after one that does not count."""
    call()
    taken = []
    for _ in range(runs):
        wait(device)
        start = perf_counter()
        call()
        wait(device)
        taken.append(perf_counter() - start)
    return sorted(taken)[runs // 2]


def wait(device: str) -> None:
    """Until the device has done what was asked of it."""
    if device != "cpu":
        torch.cuda.synchronize()


def _version(name: str) -> str | None:
    """Of an installed package; ``None`` if there is none."""
    if importlib.util.find_spec(name) is None:
        return None
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _attention() -> list[str]:
    """List the arguments that `varlen_attn` takes here."""
    import inspect

    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return []
    return list(inspect.signature(varlen_attn).parameters)
