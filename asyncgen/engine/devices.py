"""What the engine does differently on an accelerator, in one place.

Knows kinds of devices; imports torch only where something is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from asyncgen.models.graphs import Recorder

__all__ = ["DeviceKind", "kind_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """How an engine uses a kind of device.

    Attributes:
        page_size: Tokens of a page, if nothing else is asked for.
        heads_first: Layout of a page; see `PagedStorage`.
        runs_ahead: Whether a step begins before the tokens of the last one are read.
        recorder: Makes what records decode steps; ``None``: they are not recorded.
    """

    page_size: int
    heads_first: bool
    runs_ahead: bool
    recorder: Callable[[torch.device], Recorder] | None


def kind_of(device: torch.device) -> DeviceKind:
    """The kind of a device."""
    if device.type == "cuda":
        # ``varlen_attn`` asks for 256 tokens of a page of a table, or a multiple.
        return DeviceKind(
            page_size=256, heads_first=False, runs_ahead=True, recorder=_record_on_cuda
        )
    is_cpu = device.type == "cpu"
    return DeviceKind(page_size=32, heads_first=is_cpu, runs_ahead=False, recorder=None)


def _record_on_cuda(device: torch.device) -> Recorder:
    from asyncgen.models.graphs import CudaRecorder

    return CudaRecorder(device)
