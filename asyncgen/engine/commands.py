"""The commands that other threads put into the inbox of the decode thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from asyncgen.engine.requests.request import Request


@dataclass(frozen=True, slots=True)
class Add:
    """Queue a request."""

    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """Check a request whose cancel flag was set; the flag decides, the command only wakes."""

    request: Request


@dataclass(frozen=True, slots=True)
class Evict:
    """Free the blocks that a finished sequence kept."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until nobody holds a pause any more."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End every request, or wait for their ends, and end the thread."""

    drain: bool = False


Command: TypeAlias = Add | Abort | Evict | Pause | Stop
