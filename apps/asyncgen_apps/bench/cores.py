"""Divide the CPUs of this machine between a server and its client."""

from __future__ import annotations

import os


def cores() -> tuple[frozenset[int], frozenset[int]]:
    """Divide the CPUs: the last one is the client's, the others are the server's.

    Returns:
        Those of the server and those of the client; both empty if there is only one, or if the
        system cannot pin.
    """
    if not hasattr(os, "sched_getaffinity"):
        return frozenset(), frozenset()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        return frozenset(), frozenset()
    return frozenset(cpus[:-1]), frozenset(cpus[-1:])


def pin(pid: int, cpus: frozenset[int]) -> None:
    """Let a process run on these CPUs only; it must not have made threads yet."""
    if cpus:
        os.sched_setaffinity(pid, cpus)
