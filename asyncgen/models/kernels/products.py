"""Kernels of matrix products: the fastest for a weight's size and dtype.

Which kernel wins depends on device, dtype, matrix size, thread count and the maker of the CPU, and
the winner wants the weight in a layout of its own. All of that stays in this file. The choice is a
function of those five alone: nothing is timed at load, so two loads of one checkpoint compute
alike.

Where our own kernels fit (`native_linear`) they are chosen before all of these, which are torch's.

On a CPU that is not Intel's (Zen 4, torch 2.13, two threads), milliseconds for all matrices of ten
layers of 576 and 1536 features, by rows; *chunks* is a batched product of the weight, cut in two,
with a column:

| float32 kernel                   | 1    | 2    | 4    | 8    | 16   | 64   | 256   |
|----------------------------------|------|------|------|------|------|------|-------|
| `x @ w.T`                        | 12.5 | 19.8 | 16.2 | 13.3 | 16.9 | 45.4 | 107.7 |
| `x @ w`, weight transposed       | 8.8  | 13.3 | 20.7 | 16.0 | 18.9 | 36.8 | 105.8 |
| chunks                           | 4.5  | 4.9  | 7.6  | 12.0 | 15.4 | 35.9 | 110.9 |
| `w @ x.T`                        | 11.4 | 4.7  | 7.4  | 11.5 | 15.1 | 34.2 | 113.2 |
| oneDNN, weight packed            | 8.1  | 7.6  | 8.6  | 9.5  | 12.3 | 28.8 | 97.6  |
| oneDNN, weight as it lies        | 8.1  | 7.4  | 8.5  | 9.7  | 12.3 | 29.1 | 89.4  |

So there float32 weights stay as they lie, but those that have no more than 16 bits, which are
multiplied in them (`half_product`). On Intel's own processors (Sapphire Rapids with AMX, two
threads) MKL takes other paths. Its plain product is good for one row and bad for eight; its batched
product of a weight that is cut into chunks of 96 outputs, each stored as ``[in, 96]``, is as good
for one row and the best for most others. Microseconds a matrix, other weights read in between:

| float32, by rows     | 1    | 2    | 4     | 8     | 16    | 32    | 64    | 256   |
|----------------------|------|------|-------|-------|-------|-------|-------|-------|
| 3072×576, plain      | 342  | 338  | 531   | 712   | 764   | 955   | 1329  | 3479  |
| by oneDNN            | 331  | 500  | 561   | 634   | 749   | 1012  | 1454  | 4414  |
| packed for oneDNN    | 306  | 329  | 349   | 396   | 544   | 691   |       |       |
| chunks               | 294  | 349  | 381   | 447   | 527   | 823   | 974   | 4633  |
| 576×1536, plain      | 140  | 143  | 190   | 236   | 415   | 429   | 569   | 1578  |
| by oneDNN            | 266  | 223  | 260   | 276   | 312   | 428   | 691   | 1706  |
| packed for oneDNN    | 215  | 218  | 223   | 265   | 302   | 410   |       |       |
| chunks               | 146  | 188  | 205   | 248   | 278   | 357   | 487   | 1496  |
| 49152×576, plain     | 4740 | 5022 | 10041 | 16056 | 10658 | 13784 | 20892 | 59495 |
| by oneDNN            | 4929 | 6932 | 7417  | 8874  | 9893  | 11857 | 17372 | 67150 |
| packed for oneDNN    | 5104 | 5217 | 5609  | 6270  | 8091  | 10813 |       |       |
| chunks               | 4756 | 5382 | 6015  | 6916  | 8321  | 10843 | 16370 | 55325 |

So there large weights are chunked, which are most of a model; small ones stay as they lie, since a
single row must not pay for many. All of them use MKL: a step that goes to and fro between MKL and
oneDNN takes a quarter longer, as if each woke threads of its own. Only where 96 does not divide the
outputs oneDNN multiplies more than a few rows. At bfloat16 packing wins for any number, on all:

| bfloat16 weight    | plain       | transposed  | packed      |
|--------------------|-------------|-------------|-------------|
| 512×256            | 31 / 36     | 25 / 28     | 19 / 20     |
| 3072×576           | 171 / 204   | 145 / 171   | 54 / 62     |
| 49152×576          | 2902 / 3340 | 4157 / 4803 | 1265 / 1357 |

(microseconds for one row / four rows). A tied head that is laid out anew is a copy of the embedding
table; else it computes with the table itself.
"""

from __future__ import annotations

import functools
import platform
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from asyncgen import native
from asyncgen.models.kernels.half_product import HalfKernel, half_shift, supports_half_product
from asyncgen.models.kernels.huge_pages import gather_pages
from asyncgen.models.kernels.native_linear import NativeKernel, widens

FEW_ROWS: Final = 16
"""Up to so many rows a packed product is copied into the caller's buffer: that costs a
microsecond and saves the caller new views of a new tensor."""

COLUMN_ROWS: Final = 4
"""Up to so many rows a plain float32 weight is multiplied from the left."""

MKL_ROWS: Final = (8, 4)
"""Up to so many rows MKL multiplies an unpacked weight faster than oneDNN, on Intel: a small
weight, and a larger one."""

SMALL_WEIGHT: Final = 1 << 20
"""Elements of the largest small weight."""

PACKED_FOR_ROWS: Final = 16
"""Rows that a weight is packed for: such a layout is as fast as any for one row, and faster for
more than a layout made for one."""

CHUNK: Final = 96
"""Outputs of a chunk on Intel: MKL's kernels are 48 wide."""

LEAST_CHUNKED: Final = 1 << 20
"""Elements of the smallest weight that is chunked: for a single row the calls of smaller ones
cost more than their products gain."""

CPU_INFO = Path("/proc/cpuinfo")

MOST_CHUNKS: Final = 64
"""Most chunks of a weight for a single row; there are at least one a thread and two."""


class Kernel(Protocol):
    """A weight ``[out, in]`` in the layout of one kernel, and its bias.

    Attributes:
        is_gated: True if `product` and `into` give ``act(gate) * up`` ``[N, out / 2]`` instead.
        activation: That ``act``, or the activation of all of the product; ``None``: nothing.
    """

    is_gated: bool
    activation: str | None

    def product(self, x: Tensor) -> Tensor:
        """Compute ``x @ weight.T + bias`` of ``[N, in]``, as a new tensor ``[N, out]``."""

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """Write the product to ``out`` (returned) or, if that is cheaper, return a new tensor."""

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """Add the product to ``residual`` ``[N, out]`` in place."""

    def dense(self) -> Tensor:
        """Return the weight ``[out, in]`` as it is kept, in the ordinary layout; maybe a copy."""


class DenseKernel:
    """torch's own product on a weight that is seen transposed, ``[in, out]``."""

    __slots__ = ("bias", "weight")
    is_gated = False
    activation: str | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Keep the weight as ``[in, out]``, of any strides, and the bias ``[out]``."""
        self.weight = weight
        self.bias = bias

    def product(self, x: Tensor) -> Tensor:
        """See `Kernel`."""
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """See `Kernel`."""
        if self.bias is None:
            return torch.mm(x, self.weight, out=out)
        return torch.addmm(self.bias, x, self.weight, out=out)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """See `Kernel`."""
        residual.addmm_(x, self.weight)
        if self.bias is not None:
            residual.add_(self.bias)

    def dense(self) -> Tensor:
        """See `Kernel`."""
        return self.weight.t().contiguous()


class InPlaceKernel(DenseKernel):
    """A float32 weight in place: few rows by MKL, more by oneDNN."""

    __slots__ = ("most",)

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """See `DenseKernel`."""
        super().__init__(weight, bias)
        self.most = MKL_ROWS[weight.numel() > SMALL_WEIGHT]

    def product(self, x: Tensor) -> Tensor:
        """See `Kernel`."""
        if x.shape[0] <= self.most:
            return super().product(x)
        return _linear(x, self.weight.t(), self.bias, "none", [], "")

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """See `Kernel`."""
        if x.shape[0] <= self.most:
            return super().into(x, out)
        product = self.product(x)
        return out.copy_(product) if x.shape[0] <= FEW_ROWS else product

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """See `Kernel`."""
        if x.shape[0] <= self.most:
            super().add_to(residual, x)
        else:
            residual.add_(self.product(x))


class ChunkedKernel:
    """A float32 weight cut into chunks of outputs, each transposed: one batched product."""

    __slots__ = ("_results", "_rows", "bias", "count", "shape", "weight")
    is_gated = False
    activation: str | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Lay a weight ``[out, in]`` out as chunks; the caller may drop the original afterwards."""
        size = weight.shape[1]
        self.weight = weight.view(-1, CHUNK, size).transpose(1, 2).contiguous()  # [C, in, 96]
        self.bias = bias
        self.count = self.weight.shape[0]
        self.shape = (self.count, -1, size)
        # Keep the last tensors and their views: a model uses the same memory in every step.
        self._rows: tuple[Tensor | None, Any] = (None, None)
        self._results: tuple[Tensor | None, Any] = (None, None)

    def product(self, x: Tensor) -> Tensor:
        """See `Kernel`."""
        return self.into(x, x.new_empty(x.shape[0], self.count * CHUNK))

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """See `Kernel`."""
        if x.shape[0] == 1:
            torch.bmm(self._spread(x), self.weight, out=self._cut(out))
        else:
            product = torch.bmm(x.expand(self.shape), self.weight)  # [C, N, 96]
            out.view(-1, self.count, CHUNK).copy_(product.transpose(0, 1))
        return out if self.bias is None else out.add_(self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """See `Kernel`."""
        if x.shape[0] == 1:
            self._cut(residual).baddbmm_(self._spread(x), self.weight)
        else:
            product = torch.bmm(x.expand(self.shape), self.weight)
            residual.view(-1, self.count, CHUNK).add_(product.transpose(0, 1))
        if self.bias is not None:
            residual.add_(self.bias)

    def dense(self) -> Tensor:
        """See `Kernel`."""
        return self.weight.transpose(1, 2).reshape(-1, self.weight.shape[1])

    def _spread(self, x: Tensor) -> Any:
        """Expand one row for each chunk, ``[C, 1, in]``."""
        known, view = self._rows
        if known is not x:
            view = x.expand(self.shape)
            self._rows = (x, view)
        return view

    def _cut(self, out: Tensor) -> Any:
        """View one row of results by chunks, ``[C, 1, 96]``."""
        known, view = self._results
        if known is not out:
            view = out.view(self.count, 1, CHUNK)
            self._results = (out, view)
        return view

    def __reduce__(self) -> tuple[type[ChunkedKernel], tuple[Tensor, Tensor | None]]:
        """Copy and pickle by way of the ordinary layout, as the others do."""
        return ChunkedKernel, (self.dense(), self.bias)


class PackedKernel:
    """oneDNN's product on a weight in its blocked layout, as inductor's freezing uses it."""

    __slots__ = ("bias", "weight")
    is_gated = False
    activation: str | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Pack a weight ``[out, in]``; the caller may drop the original afterwards."""
        operators = torch.ops.mkldnn
        self.weight = operators._reorder_linear_weight(weight, PACKED_FOR_ROWS)
        self.bias = bias
        if hasattr(operators, "data_ptr") and hasattr(operators, "_nbytes"):
            gather_pages(operators.data_ptr(self.weight), operators._nbytes(self.weight))

    def product(self, x: Tensor) -> Tensor:
        """See `Kernel`."""
        return _linear(x, self.weight, self.bias, "none", [], "")

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """See `Kernel`."""
        product = _linear(x, self.weight, self.bias, "none", [], "")
        return out.copy_(product) if x.shape[0] <= FEW_ROWS else product

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """See `Kernel`."""
        residual.add_(_linear(x, self.weight, self.bias, "none", [], ""))

    def dense(self) -> Tensor:
        """See `Kernel`."""
        return self.weight.to_dense()

    def __reduce__(self) -> tuple[type[PackedKernel], tuple[Tensor, Tensor | None]]:
        """Copy and pickle by way of the ordinary layout: a packed tensor can do neither."""
        return PackedKernel, (self.dense(), self.bias)


class PlainKernel:
    """Products on a float32 weight in place, by number of rows."""

    __slots__ = ("bias", "chunks", "columns", "shape", "strides", "weight")
    is_gated = False
    activation: str | None = None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Share a contiguous weight ``[out, in]`` with its owner."""
        self.weight = weight
        self.bias = bias
        # [C, out / C, in], and the bias as such columns
        self.chunks = weight.view(_num_chunks(weight.shape[0]), -1, weight.shape[1])
        self.columns = None if bias is None else bias.view(len(self.chunks), -1, 1)
        # A single row as a column for each chunk, [C, in, 1]. The last stride means nothing, but
        # with 1 there MKL takes a path seven times slower.
        self.shape = (len(self.chunks), weight.shape[1], 1)
        self.strides = (0, 1, weight.shape[1])

    def product(self, x: Tensor) -> Tensor:
        """See `Kernel`."""
        rows = x.shape[0]
        if rows == 1:
            column = (x if x.stride(1) == 1 else x.contiguous()).as_strided(
                self.shape, self.strides
            )
            if self.columns is None:
                return torch.bmm(self.chunks, column).view(1, -1)
            return torch.baddbmm(self.columns, self.chunks, column).view(1, -1)
        if rows <= COLUMN_ROWS:
            return self._few(x).contiguous()
        return _linear(x, self.weight, self.bias, "none", [], "")

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """See `Kernel`."""
        rows = x.shape[0]
        if rows == 1:
            column = (x if x.stride(1) == 1 else x.contiguous()).as_strided(
                self.shape, self.strides
            )
            columns = out.view(self.chunks.shape[0], -1, 1)
            if self.columns is None:
                torch.bmm(self.chunks, column, out=columns)
            else:
                torch.baddbmm(self.columns, self.chunks, column, out=columns)
            return out
        if rows <= COLUMN_ROWS:
            return out.copy_(self._few(x))
        product = _linear(x, self.weight, self.bias, "none", [], "")
        return out.copy_(product) if rows <= FEW_ROWS else product

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """See `Kernel`."""
        rows = x.shape[0]
        if rows > 1:
            product = self._few(x) if rows <= COLUMN_ROWS else self.product(x)
            residual.add_(product)
            return
        column = (x if x.stride(1) == 1 else x.contiguous()).as_strided(self.shape, self.strides)
        residual.view(self.chunks.shape[0], -1, 1).baddbmm_(self.chunks, column)
        if self.bias is not None:
            residual.add_(self.bias)

    def dense(self) -> Tensor:
        """See `Kernel`."""
        return self.weight

    def _few(self, x: Tensor) -> Tensor:
        """Compute the product, ``[N, out]``, one row beside the other in memory."""
        product = torch.mm(self.weight, x.t()).t()
        return product if self.bias is None else product.add_(self.bias)

    def __reduce__(self) -> tuple[type[PlainKernel], tuple[Tensor, Tensor | None]]:
        """Copy and pickle the weight once, without its views."""
        return PlainKernel, (self.weight, self.bias)


def _num_chunks(out: int) -> int:
    """Return the fewest equal chunks of ``out`` features that are enough for the threads."""
    enough = max(2, torch.get_num_threads())
    fitting = [count for count in range(2, MOST_CHUNKS + 1) if out % count == 0]
    return next((count for count in fitting if count >= enough), fitting[-1] if fitting else 1)


def _find_packed_linear() -> Any:
    """Return the packed product, or ``None`` in a build of torch that lacks it."""
    operators = torch.ops.mkldnn
    if not (torch._C._has_mkldnn and hasattr(operators, "_linear_pointwise")):
        return None
    # Call the overload's function directly: two Python frames less per product.
    return operators._linear_pointwise.default._op


_linear = _find_packed_linear()


def choose_kernel(
    weight: Tensor,
    bias: Tensor | None,
    *,
    dtype: torch.dtype | None = None,
    gates: bool = False,
    activation: str | None = None,
    is_shared: bool = False,
) -> Kernel:
    """Lay out a weight ``[out, in]`` for the kernel that suits its device and dtype.

    Args:
        weight: ``[out, in]``.
        bias: ``[out]``, or ``None``.
        dtype: Of rows and products; ``None``: the weight's. A weight in another dtype is converted,
            unless the kernel widens it as it computes.
        gates: True if the weight is a gate's and an up-projection's, one below the other. A kernel
            may then compute ``act(gate) * up``; see `Kernel.is_gated`.
        activation: Activation of the gate or the product, which the kernel may apply; see
            `Kernel.activation`.
        is_shared: True if the weight stays in memory for others.
    """
    dtype = dtype or weight.dtype
    is_here = weight.device.type == "cpu"
    if is_here and prefers_half_product(dtype) and not (is_shared and weight.dtype == dtype):
        shift = half_shift(weight)
        if shift is not None:
            return HalfKernel(weight, bias, shift)
    if not (is_here and widens(weight.dtype, dtype)):
        weight = weight.to(dtype)
    if not is_here:
        return DenseKernel(weight.t(), bias)
    if native.supports(dtype):
        return NativeKernel(weight, bias, gates, dtype, activation)
    if prefers_packed(weight.dtype):
        return PackedKernel(weight, bias)
    if prefers_chunks(weight.dtype, *weight.shape):
        return ChunkedKernel(weight.contiguous(), bias)
    if _linear is not None and weight.dtype == torch.float32:
        return kernel_in_place(weight.contiguous(), bias)
    return DenseKernel(weight.t().contiguous(), bias)


def kernel_in_place(weight: Tensor, bias: Tensor | None) -> Kernel:
    """Make the fastest kernel that reads a weight ``[out, in]`` in place, without a copy."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or _linear is None:
        return DenseKernel(weight.t(), bias)
    if not has_intel_kernels():
        return PlainKernel(weight, bias)
    return (InPlaceKernel if weight.shape[0] % CHUNK else DenseKernel)(weight.t(), bias)


@functools.cache
def has_intel_kernels() -> bool:
    """Return whether torch computes with MKL on a processor of Intel: on others MKL is another
    library."""
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        described = CPU_INFO.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        described = platform.processor()
    return "GenuineIntel" in described


def needs_other_layout(dtype: torch.dtype, out_features: int, in_features: int) -> bool:
    """Return whether the fastest kernel on the CPU needs a copy of such a weight in another
    layout."""
    if native.supports(dtype):
        return True
    return prefers_packed(dtype) or prefers_chunks(dtype, out_features, in_features)


def prefers_half_product(dtype: torch.dtype) -> bool:
    """Return whether a copy in 16 bits is the fastest on the CPU, of weights that have no more."""
    if dtype != torch.float32 or native.supports(dtype) or has_intel_kernels():
        return False
    return supports_half_product()


def prefers_packed(dtype: torch.dtype) -> bool:
    """Return whether a packed copy is the fastest way to compute in ``dtype`` on the CPU."""
    if _linear is None or dtype != torch.bfloat16:
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def prefers_chunks(dtype: torch.dtype, out_features: int, in_features: int) -> bool:
    """Return whether chunks are the fastest way to compute in ``dtype`` on the CPU."""
    if dtype != torch.float32 or not has_intel_kernels():
        return False
    if out_features % CHUNK or out_features * in_features < LEAST_CHUNKED:
        return False
    return out_features // CHUNK >= torch.get_num_threads()
