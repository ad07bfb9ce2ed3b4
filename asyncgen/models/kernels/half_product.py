"""Products of float32 rows with weights that are kept in 16 bits, by torch's FBGEMM.

Most checkpoints are of 16 bits, and what a product of few rows takes is the time to read its
weight. FBGEMM widens a weight in registers, as our own kernels do, and that is exact; but it knows
float16 alone. So a weight is moved by a power of two to where float16 has its range: then numbers
of bfloat16 fit as long as none is smaller than 2⁻³² of the largest, which is tried for each weight.
Where one does not fit, nothing is rounded: the weight stays as it is. So do narrow ones, which take
more memory packed than in float32. To try and to pack a weight takes 6 to 11 ns a number, once.

On a CPU that is not Intel's (Zen 4, torch 2.13, two threads), milliseconds for all matrices of
thirty layers of 576 and 1536 features, and for a head of 49,152 outputs, by rows:

| float32 kernel         | 1          | 4          | 8          | 16         | 32          | 256   |
|------------------------|------------|------------|------------|------------|-------------|-------|
| oneDNN, as it lies     | 27.1 + 4.8 | 32.4 + 8.0 | 35.3 + 8.0 | 49.4 + 12  | 69.2 + 16.2 | 315.9 |
| oneDNN, packed         | 21.3 + 3.9 | 17.0 + 3.3 | 22.6 + 4.6 | 28.8 + 5.8 | 49.9 + 10.9 | 285.5 |
| FBGEMM, float16        | 9.4 + 2.0  | 9.1 + 2.0  | 14.2 + 3.0 | 23.0 + 5.9 | 41.1 + 10.5 | 283.5 |
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import torch
from torch import Tensor

from asyncgen.native.weight_memory import empty_temporary

MOST_SHIFT: Final = 64
"""The largest power of two that a weight is moved by; numbers beyond it do not matter."""

TOP: Final = 15
"""Numbers are moved below two to this power; float16 ends at 65,504."""

ALIGNMENT: Final = (16, 512)
"""FBGEMM fills outputs and inputs up to multiples of so many."""

PART: Final = 1 << 20
"""Numbers that are tried at a time: the memory for it is small, and freed at once."""


class HalfKernel:
    """A weight ``[out, in]`` in float16 that is multiplied by rows in float32; see `Kernel`."""

    __slots__ = ("_packed", "_scale", "bias")
    is_gated = False
    activation: str | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None, shift: int) -> None:
        """Pack a weight; the caller may drop the original afterwards.

        Args:
            weight: ``[out, in]``, of any floating dtype.
            bias: ``[out]``, or ``None``.
            shift: Result of `half_shift`.
        """
        # A copy, never the weight itself: torch may write to it.
        moved = empty_temporary(tuple(weight.shape), torch.float32).copy_(weight).mul_(2.0**shift)
        self._packed = torch.ops.quantized.linear_prepack_fp16(moved, None)
        self._scale = 2.0**-shift
        self.bias = bias

    def product(self, x: Tensor) -> Tensor:
        """See `Kernel`."""
        found: Tensor = _multiply()(x * self._scale, self._packed)  # a row has fewer numbers
        return found if self.bias is None else found.add_(self.bias)

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """See `Kernel`."""
        torch.mul(_multiply()(x, self._packed), self._scale, out=out)
        return out if self.bias is None else out.add_(self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """See `Kernel`."""
        residual.add_(_multiply()(x, self._packed), alpha=self._scale)
        if self.bias is not None:
            residual.add_(self.bias)

    def dense(self) -> Tensor:
        """See `Kernel`."""
        weight: Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return weight * self._scale

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by way of the ordinary layout: a packed weight can do neither."""
        return HalfKernel, (self.dense(), self.bias, -round(math.log2(self._scale)))


def half_shift(weight: Tensor) -> int | None:
    """Find the power of two by which a weight ``[out, in]`` must be moved to fit into float16.

    Returns:
        The power, or ``None`` if a number would be rounded, torch lacks the product, or the weight
        takes more memory than in float32.
    """
    if not weight.numel() or half_bytes(*weight.shape) > 4 * weight.numel():
        return None
    if not supports_half_product():
        return None
    low, high = torch.aminmax(weight)
    largest = max(-float(low), float(high))
    if not math.isfinite(largest):
        return None
    shift = min(TOP - math.frexp(largest)[1], MOST_SHIFT) if largest else 0
    for part in torch.split(weight, max(PART // weight.shape[1], 1)):
        moved = part.float() * 2.0**shift
        if not torch.equal(moved.half().float(), moved):
            return None
    return shift


def half_bytes(out_features: int, in_features: int) -> int:
    """Compute the memory of a packed weight ``[out, in]``."""
    sizes = zip((out_features, in_features), ALIGNMENT, strict=True)
    return 2 * math.prod(-(-size // unit) * unit for size, unit in sizes)


def supports_half_product() -> bool:
    """Return whether torch has the product on this processor, and no other engine is chosen."""
    return torch.backends.quantized.engine in ("x86", "fbgemm") and _multiply() is not None


@functools.cache
def _multiply() -> Any:
    """Return FBGEMM's product, or ``None`` if torch lacks it; called while that is the engine."""
    operators = torch.ops.quantized
    names = ("linear_prepack_fp16", "linear_unpack_fp16", "linear_dynamic_fp16")
    if not all(hasattr(operators, name) for name in names):
        return None
    # Call the overload's function directly: two Python frames less per product.
    product = operators.linear_dynamic_fp16.default._op
    try:
        ones = torch.ones(8, 8, dtype=torch.float32, device="cpu")
        product(ones, operators.linear_prepack_fp16(ones, None))
    except RuntimeError:  # a processor that it does not know
        return None
    return product
