"""Numbers to a device and back, without waiting for what the device still has to do.

A plain copy from ordinary memory waits until everything that was asked of the device before is
done. Over pinned memory it takes its place in the queue, and the caller goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device.

    Args:
        values: Of any shape; may be forgotten at once.
        device: Where it shall be; the tensor itself is returned where it is there already.
    """
    if device.type != "cuda":
        return values.to(device)
    # torch keeps pinned memory from being used again until the copy has read it.
    return values.pin_memory().to(device, non_blocking=True)


class Readback:
    """A copy of a tensor on its way from a device: begun now, waited for when it is needed."""

    def __init__(self, values: Tensor) -> None:
        """Begin to copy.

        Args:
            values: Of any shape; what is computed later does not change the copy, unless it
                writes to this very tensor on a CPU.
        """
        self._event: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(values.device))

    def wait(self) -> Tensor:
        """Wait for the copy alone, not for what was asked of the device after it.

        Returns:
            The values, on the CPU.
        """
        if self._event is not None:
            self._event.synchronize()
        return self._values
