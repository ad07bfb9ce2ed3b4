"""Share the CPUs of this machine between a server and its client."""

from __future__ import annotations

import os


def cores() -> tuple[frozenset[int], frozenset[int]]:
    """Share the CPUs out: the last one is the client's, the rest is the server's.

    Returns:
        Those of the server and those of the client; both empty where there is only one, or where
        the system cannot pin.
    """
    if not hasattr(os, "sched_getaffinity"):
        return frozenset(), frozenset()
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        return frozenset(), frozenset()
    return frozenset(cpus[:-1]), frozenset(cpus[-1:])


def pin(pid: int, cpus: frozenset[int]) -> None:
    """Let a process run only there; it must not have made threads yet."""
    if cpus:
        os.sched_setaffinity(pid, cpus)
