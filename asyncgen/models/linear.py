"""Matrix products of a model: one module per weight, the fastest kernel for its size and dtype.

Which kernel wins depends on device, dtype, matrix size and thread count, and the winner wants the
weight in a layout of its own. All of that stays in this file. The choice is a function of those
four alone: nothing is timed at load, so two loads of one checkpoint compute alike.

On a CPU (Zen 4, torch 2.13), microseconds for one row / four rows with two threads:

| weight             | plain       | transposed  | packed      |
|--------------------|-------------|-------------|-------------|
| 512×256 float32    | 15 / 30     | 11 / 28     | 18 / 28     |
| 1376×256 float32   | 40 / 87     | 27 / 76     | 29 / 53     |
| 960×576 float32    | 68 / 141    | 53 / 186    | 37 / 76     |
| 512×256 bfloat16   | 31 / 36     | 25 / 28     | 19 / 20     |
| 3072×576 bfloat16  | 171 / 204   | 145 / 171   | 54 / 62     |
| 49152×576 float32  | 9173 / 16 k | 4467 / 20 k | 3512 / 5467 |
| 49152×576 bfloat16 | 2902 / 3340 | 4157 / 4803 | 1265 / 1357 |

A single row on a transposed float32 weight is computed by one thread, at the speed of memory: with
one thread that beats packing at every size (a step of 21 MB of weights: 1.2 against 2.2 ms).
oneDNN also reads a plain float32 weight as fast as a packed one for few rows (3246 / 5538 for the
large one), which is what a tied head uses where a copy of the embedding table would be too large.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

__all__ = ["Embedding", "Kernel", "Linear"]

PACKED_BYTES: Final = {torch.float32: 2_000_000, torch.bfloat16: 0}
"""Weight bytes from which a packed matrix beats a transposed one, by dtype."""

FEW_ROWS: Final = 16
"""Up to so many rows a packed product is copied into the caller's buffer: that costs a
microsecond and saves the caller from making new views of a new tensor."""


class Kernel(Protocol):
    """A weight ``[out, in]`` in the layout of one kernel, and its bias."""

    def product(self, x: Tensor) -> Tensor:
        """``x @ weight.T + bias`` of ``[N, in]``, as a new tensor ``[N, out]``."""

    def into(self, x: Tensor, out: Tensor) -> Tensor:
        """The product, in ``out`` (returned) or, where that is cheaper, in a new tensor."""

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """Add the product to ``residual`` ``[N, out]`` in place."""

    def dense(self) -> Tensor:
        """The weight ``[out, in]`` in the ordinary layout; a copy where the layout differs."""


class DenseKernel:
    """torch's own product on a weight that is seen transposed, ``[in, out]``."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take the weight as ``[in, out]``, of any strides, and the bias ``[out]``."""
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


class PackedKernel:
    """oneDNN's product on a weight in its blocked layout, as inductor's freezing uses it."""

    __slots__ = ("bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Pack a weight ``[out, in]``; the caller may drop the original afterwards."""
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        self.bias = bias

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


class SharedKernel(DenseKernel):
    """A product on a float32 table that stays as it lies, for few rows by oneDNN."""

    __slots__ = ("table",)

    def __init__(self, table: Tensor) -> None:
        """Share a table ``[out, in]`` with its owner."""
        super().__init__(table.t(), None)
        self.table = table

    def product(self, x: Tensor) -> Tensor:
        """See `Kernel`."""
        if x.shape[0] <= FEW_ROWS:
            return _linear(x, self.table, None, "none", [], "")
        return super().product(x)


def _find_packed_linear() -> Any:
    """The packed product, or ``None`` in a build of torch that lacks it."""
    operators = torch.ops.mkldnn
    if not (torch._C._has_mkldnn and hasattr(operators, "_linear_pointwise")):
        return None
    # The overload's function itself: two Python frames less per product.
    return operators._linear_pointwise.default._op


_linear = _find_packed_linear()


def choose_kernel(weight: Tensor, bias: Tensor | None) -> Kernel:
    """Lay out a weight ``[out, in]`` for the kernel that suits its device, dtype and size."""
    if weight.device.type != "cpu":
        return DenseKernel(weight.t(), bias)
    if _packs(weight):
        return PackedKernel(weight, bias)
    return DenseKernel(weight.t().contiguous(), bias)


def _packs(weight: Tensor) -> bool:
    threshold = PACKED_BYTES.get(weight.dtype)
    if _linear is None or threshold is None or weight.nbytes < threshold:
        return False
    if weight.dtype == torch.float32:
        return torch.get_num_threads() > 1
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Linear(nn.Module):
    """``x @ weight.T + bias`` without gradients.

    The weight is an ordinary parameter until `prepare` has laid it out for its kernel; from then
    on ``weight`` is ``None`` and `dense_weight` gives it back.

    Attributes:
        weight: ``[out_features, in_features]``, or ``None`` once prepared.
        bias: ``[out_features]``, or ``None``.
        kernel: What computes; replaced by `prepare`.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the parameters, uninitialised, on the current default device.

        Args:
            in_features: Size of an input row.
            out_features: Size of an output row.
            bias: Whether a bias is added.
            dtype: Of weight and bias; ``None``: torch's default.
        """
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = _parameter(torch.empty(out_features, in_features, dtype=dtype))
        self.register_parameter(
            "bias", _parameter(torch.empty(out_features, dtype=dtype)) if bias else None
        )
        self.kernel: Kernel | None = None
        self._tied = False

    def prepare(self) -> None:
        """Lay the weight out for its kernel and free the original; idempotent.

        Call it once weight and bias are loaded, on the thread that will compute. A weight that is
        still on the meta device is left alone.
        """
        weight = self.weight
        if weight is None or weight.is_meta:
            return
        self.weight = None
        self.kernel = choose_kernel(weight.detach(), _detached(self.bias))

    def tie(self, table: Tensor, *, own_copy: bool) -> None:
        """Compute with another module's weight.

        Args:
            table: ``[out_features, in_features]``, in the dtype of the inputs.
            own_copy: Whether to lay out a copy for the fastest kernel; otherwise the table is
                used as it lies.
        """
        self._tied = True
        if own_copy:
            self.kernel = choose_kernel(table, None)
        elif _linear is not None and table.dtype == torch.float32 and table.device.type == "cpu":
            self.kernel = SharedKernel(table)
        else:
            self.kernel = DenseKernel(table.t(), None)

    def forward(self, x: Tensor) -> Tensor:
        """The product of ``[..., in_features]``, as a new tensor ``[..., out_features]``."""
        kernel = self.ready()
        return kernel.product(x.reshape(-1, self.in_features)).view(*x.shape[:-1], -1)

    def ready(self) -> Kernel:
        """The kernel; one on the plain weight where `prepare` was not called yet."""
        if self.kernel is not None and self.weight is None:
            return self.kernel
        weight = self.weight
        if weight is None:
            raise AssertionError("a linear layer without weight cannot compute")
        return DenseKernel(weight.detach().t(), _detached(self.bias))

    def dense_weight(self) -> Tensor:
        """The weight ``[out_features, in_features]``, a copy if the kernel holds another layout."""
        return self.ready().dense()

    def _apply(self, fn: Any, recurse: bool = True) -> Linear:
        # `model.to(...)` reaches parameters only, so the weight becomes one for the occasion.
        packed = self.weight is None and self.kernel is not None and not self._tied
        if packed:
            self.weight = _parameter(self.dense_weight())
            self.kernel = None
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if packed:
            self.prepare()
        elif self._tied:
            self.kernel = None
        return self


class Embedding(nn.Module):
    """A look-up table whose storage may differ in dtype from what it gives.

    Attributes:
        weight: ``[num_embeddings, features]``; may be a read-only view of a file, of any floating
            dtype.
        dtype: Dtype of the rows given out.
    """

    weight: nn.Parameter

    def __init__(
        self, num_embeddings: int, features: int, *, dtype: torch.dtype | None = None
    ) -> None:
        """Make the table, uninitialised, on the current default device."""
        super().__init__()
        self.dtype = dtype or torch.get_default_dtype()
        self.weight = _parameter(torch.empty(num_embeddings, features, dtype=self.dtype))
        self._table: Tensor | None = None

    def prepare(self) -> None:
        """Take note of a newly loaded table."""
        self._table = self.weight.detach()

    def lookup(self, ids: Tensor) -> Tensor:
        """Rows of ids ``[N]`` (int64), as a new tensor ``[N, features]``."""
        table = self._table
        if table is None:
            table = self._table = self.weight.detach()
        rows = table.index_select(0, ids)
        return rows if rows.dtype is self.dtype else rows.to(self.dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """Rows of ids of any shape ``[...]``, as ``[..., features]``."""
        return self.lookup(ids.reshape(-1)).view(*ids.shape, -1)

    def _apply(self, fn: Any, recurse: bool = True) -> Embedding:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        self._table = None
        return self


def _parameter(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)


def _detached(parameter: nn.Parameter | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()
