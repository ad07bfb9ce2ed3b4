"""Products of rows in float16, by the kernels that widen weights of 16 bits in registers.

No arithmetic is done in float16: rows become float32, sums, biases and activations are float32, and
what comes out is rounded once. torch rounds at the same places, and between a product and its
activation as well. A result beyond 65,504 is infinite, as there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from asyncgen.models.kernels.native_linear import NativeKernel

if TYPE_CHECKING:
    from torch import Tensor


class HalfKernel:
    """A weight ``[out, in]`` in float16, in panels, and its bias; see `Kernel` for the methods.

    Attributes:
        wide: The kernel that multiplies rows in float32 by it.
        is_gated: See `NativeKernel`.
        activation: See `NativeKernel`.
    """

    __slots__ = ("activation", "is_gated", "wide")

    def __init__(self, wide: NativeKernel) -> None:
        """Take a kernel of rows in float32, whose weight is in float16."""
        self.wide, self.is_gated, self.activation = wide, wide.is_gated, wide.activation

    @classmethod
    def of(
        cls, weight: Tensor, bias: Tensor | None, is_gated: bool, activation: str | None
    ) -> HalfKernel:
        """Lay a weight ``[out, in]`` in float16 out; arguments as those of `NativeKernel`."""
        return cls(NativeKernel(weight, bias, is_gated, torch.float32, activation))

    def product(self, x: Tensor) -> Tensor:
        """See `Kernel`."""
        return self.wide.product(x.float()).to(torch.float16)

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """See `Kernel`."""
        return out.copy_(self.wide.product(x.float()))

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """See `Kernel`; the product is rounded, and the sum again."""
        residual.add_(self.product(x))

    def dense(self) -> Tensor:
        """See `Kernel`."""
        return self.wide.dense()

    def __reduce__(self) -> tuple[type[HalfKernel], tuple[NativeKernel]]:
        """Copy and pickle by way of the kernel inside."""
        return HalfKernel, (self.wide,)
