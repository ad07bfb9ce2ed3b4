"""Tells a processor whether the sequences of this call are those of the last one, one token on.

What is true of a growing sequence can then be kept up at the cost of the new token alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Growth"]


class Growth:
    """Remembers the sequences of the last call.

    Attributes:
        append_only: Trust the caller that rows only ever grow at their end. Then a call looks at
            lengths alone; otherwise the older tokens are compared as well.
    """

    def __init__(self, *, append_only: bool = False) -> None:
        """Start without any sequence."""
        self.append_only = append_only
        self._shape: tuple[int, int] | None = None
        self._seen: Tensor | None = None

    def by_one(self, input_ids: Tensor) -> bool:
        """Take sequences in and tell whether each is the last one and one more token.

        Args:
            input_ids: Tokens so far, int64 [B, T].

        Returns:
            False for other rows, another order of rows, or any other change of the length.
        """
        batch, length = input_ids.shape
        grew = self._shape == (batch, length - 1)
        if not self.append_only:
            seen = self._seen
            grew = (
                grew
                and seen is not None
                and input_ids.device == seen.device
                and torch.equal(input_ids[:, :-1], seen)
            )
            # A copy: the caller may go on writing to the buffer that these ids are a view of.
            self._seen = input_ids.clone()
        self._shape = (batch, length)
        return grew
