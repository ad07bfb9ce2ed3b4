"""Which replica a request goes to: the one that knows its beginning, unless that has too much.

A request ranks the replicas by a hash of its beginning and their names (Thaler and Ravishankar,
"Using name-based mappings to increase hit rates", 1998: rendezvous hashing), so that all turns of a
conversation reach the same one and a lost replica moves only its own. One that has more than its
share is passed over (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads",
2018, section 1): it has at most `BOUND` times the mean, and one more.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BOUND = 1.25


def ranked(session: str, loads: Mapping[str, int]) -> list[str]:
    """Order replicas for a request.

    Args:
        session: How it begins; empty: only the load counts.
        loads: Requests of each replica.

    Returns:
        All names: first those that are not too full, as the hash has them, then the others, the
        emptiest first.
    """
    by_load = sorted(loads, key=lambda name: (loads[name], _mark("", name)))
    if not session:
        return by_load
    most = BOUND * (sum(loads.values()) + 1) / max(len(loads), 1) + 1
    light = [name for name in by_load if loads[name] + 1 <= most]
    light.sort(key=lambda name: _mark(session, name), reverse=True)
    return [*light, *(name for name in by_load if name not in light)]


def _mark(session: str, name: str) -> bytes:
    return hashlib.sha256(f"{session}/{name}".encode()).digest()
