"""Make tensors of the host, and copy them to a device and back without waiting for its work.

A plain copy from ordinary memory waits until all earlier work of the device is done. A copy from
pinned memory is queued, and the caller goes on.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_CPU = torch.device("cpu")

host_ints: Callable[..., Tensor] = partial(torch.tensor, dtype=torch.int64, device=_CPU)
"""Make a tensor of numbers, int64 on the CPU whatever torch's defaults are."""
host_range: Callable[..., Tensor] = partial(torch.arange, dtype=torch.int64, device=_CPU)
"""Count as `torch.arange` does, int64 on the CPU whatever torch's defaults are."""


def given_tensor(values: Any) -> Tensor:
    """Return a tensor as it is, and other numbers as a tensor of their own type on the CPU."""
    return values if isinstance(values, torch.Tensor) else torch.as_tensor(values, device="cpu")


def plain_tensor(value: Any) -> Any:
    """Return a tensor of a subclass as one of torch's own, with the same bits; all else as it is.

    Operations on a subclass run code of its class: convert what code of a user returns before
    its call is over.
    """
    if not isinstance(value, torch.Tensor) or type(value) is torch.Tensor:
        return value
    no_dispatch: Any = torch._C._disabled_torch_dispatch_impl
    if type(value).__torch_dispatch__ is not no_dispatch:  # its memory may be elsewhere
        copied = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        copied.copy_(value)
        return copied
    with torch._C.DisableTorchFunctionSubclass():
        return torch.Tensor.as_subclass(value, torch.Tensor)


def given_ints(values: Any, most: int | None = None) -> list[int] | None:
    """Return integers in any nesting as a flat list; ``None`` where that is something else.

    Args:
        values: Integers, a tensor of them, or any sequence.
        most: How many entries a sequence may have, at any depth; ``None`` for any number.
    """
    try:
        if most is not None and _is_longer(values, most):
            return None
        found = torch.as_tensor(plain_tensor(values), device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    is_real = found.is_floating_point() or found.is_complex() or found.dtype == torch.bool
    return None if is_real and found.numel() else found.reshape(-1).tolist()


def _is_longer(values: Any, most: int) -> bool:
    """Tell whether a sequence is longer, or says so, or holds such a one: torch reads all of it."""
    if isinstance(values, (int, torch.Tensor)) or not hasattr(values, "__len__"):
        return False
    if len(values) > most:
        return True
    if isinstance(values, str | bytes | dict) or hasattr(values, "__array__"):
        return False
    entries = [*islice(values, most + 1)]  # its length need not be true
    return len(entries) > most or any(_is_longer(each, most) for each in entries)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device.

    Args:
        values: Tensor of any shape; the caller need not keep it.
        device: Target; a tensor that is there already is returned unchanged.
    """
    if device.type != "cuda":
        return values.to(device)
    # torch does not reuse pinned memory before the copy has read it.
    return values.pin_memory().to(device, non_blocking=True)


class Readback:
    """Copy of a tensor from a device, started at once and awaited later."""

    def __init__(self, values: Tensor) -> None:
        """Start to copy.

        Args:
            values: Tensor of any shape; later computations do not change the copy, unless they
                write to this tensor on a CPU.
        """
        self._event: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:
            self._values = torch.empty(
                values.shape, dtype=values.dtype, pin_memory=True, device="cpu"
            )
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(values.device))

    def wait(self) -> Tensor:
        """Wait for the copy alone, not for later work of the device.

        Returns:
            The values, on the CPU.
        """
        if self._event is not None:
            self._event.synchronize()
        return self._values
