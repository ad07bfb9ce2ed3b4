"""Modules that make a plan of their parameters, once, and compute with that."""

from __future__ import annotations

from typing import Any, Self

from torch import nn


class Prepared(nn.Module):
    """Module with a plan: the result of `prepare`, until parameters are moved.

    Looking up parameters and submodules goes through ``nn.Module.__getattr__``, which costs as much
    as a small operator; a tuple is unpacked in one instruction.
    """

    _plan: Any = None

    def prepare(self) -> None:
        """Make the plan; call it again after parameters were replaced."""
        raise NotImplementedError

    def _ready(self) -> Any:
        """Return the plan, made now if there is none."""
        if self._plan is None:
            self.prepare()
        return self._plan

    def __getstate__(self) -> dict[str, Any]:
        """Leave the plan out of a copy, which makes its own."""
        return {**self.__dict__, "_plan": None}

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._plan = None
        return self
