"""Modules that make of their parameters, once, what they compute with."""

from __future__ import annotations

from typing import Any, Self

from torch import nn


class Prepared(nn.Module):
    """A module with a plan: what `prepare` made of its parameters, until these are moved.

    Looking up parameters and submodules goes through ``nn.Module.__getattr__``, which costs as much
    as a small operator; a tuple is unpacked in one instruction.
    """

    _plan: Any = None

    def prepare(self) -> None:
        """Make the plan; again after parameters were replaced."""
        raise NotImplementedError

    def _ready(self) -> Any:
        """The plan, made now if there is none."""
        if self._plan is None:
            self.prepare()
        return self._plan

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes a plan of its own."""
        return {**self.__dict__, "_plan": None}

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._plan = None
        return self
