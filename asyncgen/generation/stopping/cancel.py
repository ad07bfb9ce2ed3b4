"""The flag that ends a request from outside, in the shape of a stopping criterion.

Torch is imported only where a tensor is already at hand, so that a stream can own a flag before
anything heavy is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class CancelCriteria:
    """A stopping criterion that anybody may set, from any thread, at any time.

    Pass it in ``stopping_criteria=[cancel]`` of any ``generate`` and call :meth:`set` elsewhere:
    every row ends after the token being computed.

    Attributes:
        flag: Whether the request is to end, for those that look at every step.
    """

    # One attribute store is atomic in CPython; readers need no lock to see it.
    flag = False

    def set(self) -> None:
        """End the request; idempotent, and safe in destructors."""
        self.flag = True

    def is_set(self) -> bool:
        """True if the request is to end."""
        return self.flag

    def __call__(self, input_ids: Tensor, scores: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Answer for every row at once.

        Args:
            input_ids: Sequences so far, int64 ``[B, T]``.
            scores: Not read.
            **kwargs: Not read; the documented signature has them.

        Returns:
            Bool ``[B]``, all ``True`` once set.
        """
        import torch

        return torch.full(
            (input_ids.shape[0],), self.flag, dtype=torch.bool, device=input_ids.device
        )
