"""Flag of a reader that has left, usable as a stopping criterion of any `generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class Cancelled:
    """A flag that can be given to `generate` among its `stopping_criteria`.

    It is true once set and stays so. Setting and reading it takes no lock: any thread, a signal
    handler and a finalizer may do both.
    """

    __slots__ = ("_set", "on_set")

    def __init__(self) -> None:
        self._set = False
        self.on_set: Callable[[], object] | None = None
        """Called once the flag is set, in whatever thread does it: for a producer that waits."""

    def set(self) -> None:
        """Ask the producer to stop at its next step."""
        self._set = True
        on_set = self.on_set
        if on_set is not None:
            on_set()

    def is_set(self) -> bool:
        """Tell whether the producer is asked to stop."""
        return self._set

    def __bool__(self) -> bool:
        return self._set

    def __call__(
        self, input_ids: torch.Tensor, scores: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Answer as a stopping criterion.

        Args:
            input_ids: Ids so far, `[B, S]`.
            scores: Ignored.
            kwargs: Ignored.

        Returns:
            Boolean tensor `[B]` on the device of `input_ids`: True for rows that are to stop.
        """
        import torch

        return torch.full(
            (input_ids.shape[0],), self._set, dtype=torch.bool, device=input_ids.device
        )
