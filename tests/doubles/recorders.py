"""Recorders of device work for a CPU: one that keeps the call, one that keeps what it computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CallRecorder", "NoRecorder", "TapeRecorder"]


class CallRecorder:
    """Repeats a step by computing it again, on the same memory.

    Attributes:
        num_recorded: Recordings made.
        num_repeated: Repetitions.
    """

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_repeated = 0

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Keep the function."""
        function()
        self.num_recorded += 1

        def repeat() -> Tensor:
            self.num_repeated += 1
            return function()

        return repeat


class TapeRecorder:
    """Repeats the very operators, on the very tensors, that it saw: nothing of the host is asked.

    What a step took from the host while it was recorded stays as it was then, as on a device.
    """

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Write every operator down."""
        function()
        with _Tape() as tape:
            made = function()

        def repeat() -> Tensor:
            tape.play()
            return made

        return repeat


class NoRecorder:
    """Fails as a device does that cannot record."""

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Fail, and fail again while it cleans up."""
        try:
            raise RuntimeError("operation not permitted when stream is capturing")
        finally:
            raise RuntimeError("capture was invalidated")


class _Tape(TorchDispatchMode):
    """Operators in their order, each with its inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and write it down."""
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a number was read back while recording")
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        self._steps.append((func, args, kwargs, _tensors(made)))
        return made

    def play(self) -> None:
        """Run all of them again; each result goes where the first one was."""
        for func, args, kwargs, kept in self._steps:
            for old, new in zip(kept, _tensors(func(*args, **kwargs)), strict=True):
                if new.data_ptr() != old.data_ptr():
                    old.copy_(new)


def _tensors(made: Any) -> list[Tensor]:
    return [each for each in tree_leaves(made) if isinstance(each, Tensor)]
