"""Compute statistics of samples, and describe the machine that they come from."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.179, 2.131)
"""Quantile 0.975 of Student's distribution, for 1, 2, … degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two things, with its uncertainty.

    Attributes:
        mean: Geometric mean of the pairs.
        low: Lower end of its interval of 95 % confidence; 0 for a single pair.
        high: Upper end; infinite for a single pair.
    """

    mean: float
    low: float
    high: float


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """Return the ratio of the first to the second of each pair.

    The logarithms of the ratios count as normally distributed; Student's t gives the interval.

    Args:
        pairs: At least one; all numbers are above 0.
    """
    logs = [math.log(first / second) for first, second in pairs]
    mean = fmean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(mean), 0.0, math.inf)
    quantile = _STUDENT[min(len(logs) - 1, len(_STUDENT)) - 1]
    reach = quantile * stdev(logs) / math.sqrt(len(logs))
    return Ratio(*map(math.exp, (mean, mean - reach, mean + reach)))


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least ``share`` of all samples do not exceed.

    Nearest rank, no interpolation: the result is a value that was measured.

    Args:
        samples: In any order, at least one.
        share: From 0 to 1; 1 is the maximum.
    """
    ordered = sorted(samples)
    # The rounding keeps 0.999 * 1000 at 999.
    rank = math.ceil(round(share * len(ordered), 9))
    return ordered[max(0, rank - 1)]


def gaps(times: Iterable[Sequence[float]]) -> list[float]:
    """Return the seconds between the tokens of each stream, all streams one after the other."""
    return [after - before for one in times for before, after in pairwise(one)]


def overhead(seconds: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the extra time of runs over the baseline runs next to them, as a share.

    It is the median of the ratios of pairs: both of a pair meet the same state of the machine.

    Args:
        seconds: Duration of each run.
        baseline: Duration of the baseline run beside it, as many.
    """
    return median(run / base for run, base in zip(seconds, baseline, strict=True)) - 1


def hardware() -> dict[str, object]:
    """Describe the processor and the kernels that use it."""
    from asyncgen import cpu_kernels  # loads torch

    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_model(),
        "cores": available,
        "kernels": cpu_kernels(),
        "system": platform.platform(),
    }


def _cpu_model() -> str:
    """Name the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def versions() -> dict[str, str]:
    """Return the versions of the measured libraries."""
    found = {"python": platform.python_version()}
    for name in ("asyncgen", "torch", "transformers", "tokenizers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
